// A typical indexer: a loop of viem's getLogs over ranges of blocks, with one INSERT per event. It decodes the same
// events as Herald, and stores each event with its position on the chain.
import { createPublicClient, http, parseAbiItem } from 'viem'
import pg from 'pg'

const event = parseAbiItem('event NewFeedback(uint256 indexed agentId, address indexed clientAddress, uint64 feedbackIndex, int128 value, uint8 valueDecimals, string indexed indexedTag1, string tag1, string tag2, string endpoint, string feedbackURI, bytes32 feedbackHash)')
const { DATABASE_URL, RPC_URL, REGISTRY, FIRST, LAST, WIDTH } = process.env

const chain = createPublicClient({ transport: http(RPC_URL) })
const database = new pg.Client({ connectionString: DATABASE_URL })
await database.connect()
await database.query('DROP TABLE IF EXISTS public.indexer_jobs')
await database.query('CREATE TABLE public.indexer_jobs (id bigserial PRIMARY KEY, key text UNIQUE NOT NULL, block bigint NOT NULL, job jsonb NOT NULL)')

const began = performance.now()
let rows = 0
for (let from = BigInt(FIRST); from <= BigInt(LAST); from += BigInt(WIDTH)) {
  const to = from + BigInt(WIDTH) - 1n
  const logs = await chain.getLogs({ address: REGISTRY, event, fromBlock: from, toBlock: to < BigInt(LAST) ? to : BigInt(LAST) })
  for (const log of logs) {
    const job = JSON.stringify({ ...log.args, block: log.blockNumber, hash: log.blockHash, transaction: log.transactionHash, log: log.logIndex },
      (_, value) => typeof value === 'bigint' ? value.toString() : value)
    await database.query('INSERT INTO public.indexer_jobs (key, block, job) VALUES ($1, $2, $3) ON CONFLICT (key) DO NOTHING',
      [`${log.args.agentId}/${log.args.clientAddress}/${log.args.feedbackIndex}`, log.blockNumber, job])
    rows++
  }
}
const seconds = (performance.now() - began) / 1000
await database.query('DROP TABLE public.indexer_jobs')
await database.end()
console.log(JSON.stringify({ rows, seconds }))
