/**
 * Stores the answers of processed deliveries, so that a repeated delivery is answered and not processed again. A store
 * of your own is a table with deliveryId as its primary key. get and put may return promises. If put fails, Herald
 * sends the delivery again.
 */
export interface DeliveryStore {
  /** Returns the answer of a processed delivery; undefined or null if it was not processed. */
  get(deliveryId: string): string | null | undefined | Promise<string | null | undefined>;
  /** Stores the answer after the handler has succeeded. */
  put(deliveryId: string, answer: string): unknown;
}

/** Keeps the answers of the last deliveries in memory. A restart of the process forgets them. */
export class MemoryStore implements DeliveryStore {
  #answers = new Map<string, string>();
  #limit: number;

  /** limit is the number of deliveries that the store keeps. It evicts the least recently used one. */
  constructor(limit = 10_000) {
    if (!Number.isInteger(limit) || limit < 1)
      throw new RangeError(`a MemoryStore keeps at least one delivery, not ${limit}`);
    this.#limit = limit;
  }

  get(deliveryId: string): string | undefined {
    const answer = this.#answers.get(deliveryId);
    if (answer !== undefined) this.put(deliveryId, answer);
    return answer;
  }

  put(deliveryId: string, answer: string): void {
    this.#answers.delete(deliveryId);
    this.#answers.set(deliveryId, answer);
    for (const [oldest] of this.#answers) {
      if (this.#answers.size <= this.#limit) break;
      this.#answers.delete(oldest);
    }
  }
}

/** The store of all agents of this process that name none: an id belongs to one delivery to one agent. */
export const defaultStore = new MemoryStore();
