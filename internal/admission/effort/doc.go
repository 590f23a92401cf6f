// Package effort gives each agent an effort budget: the worker time that its attempts may use. Worker time is the time
// for which an agent's attempts occupy slots; a worker runs one attempt per slot. So slow agents leave slots for the
// others. The package only counts. Package admission decides which slots costly agents may use (groups.go),
// and package ratelimit limits origins and endpoints. See docs/design/limits.md.
//
// # The budget
//
// An agent (chain, identity registry, agent id) has a token bucket of Config.Size seconds of worker time. The bucket
// refills by its whole size per minute. When an attempt ends, its cost is subtracted, even if less is left: with 10 s
// left, a call of 25 s leaves -15 s, and the next attempt waits until the bucket has refilled. prices.go has the
// prices.
//
// A running attempt reserves worker time: the mean cost of the agent's latest attempts, or the time since the attempt
// contacted the agent, whichever is longer. If the agent's used and reserved time reaches the bucket's size, its next
// attempts are refused. Each refused delivery waits until a time of its own. So an agent that takes 25 s per call and
// has 60 s per minute can have at most three running attempts, and one on average.
//
// Clients choose the files that their feedback names. Fetching the files of feedback may use half of a bucket, and
// fetching those of responses an eighth. After that, deliveries with such a file to fetch wait, and the others
// continue. Without this limit, two feedbacks per minute that name a host which never answers would keep an agent from
// getting any delivery.
//
// A replay is charged and refused like any other attempt, because a bulk replay would otherwise take the slots of due
// deliveries. The command `worker agent probe` is neither charged nor refused: it uses no slot, and it has to work for
// an agent whose budget is used up.
//
// # Why a budget alone is not enough
//
// 50 agents that take 25 s per call and may use 60 s per minute each can occupy 50 slots all the time, but a worker has
// 32. With smaller budgets, more such agents would have the same effect. So costly agents may use only a part of the
// slots. An agent is costly while its latest attempts took longer than a second on average, or while it has used half
// of its budget (Hold.Costly).
//
// By default, costly agents share 16 of 32 slots. A newcomer is an agent without a recent success. Costly agents,
// newcomers and fetches of files that take longer than a second together share 24 slots. The other 8 slots stay free
// for agents that take less than a second, however many slow agents there are. In these 8 slots, at least 8 deliveries
// a second run, and hundreds if a call takes 20 ms. The slots must stay empty for quick agents, because a running call
// cannot be interrupted. The budget divides the 16 slots among the costly agents: each has at most three at a time, and
// one on average. If all agents are slow, the operator gives the worker more slots (HERALD_CONCURRENCY).
//
// One case is not prevented: if quick agents suddenly become slow, their running calls occupy slots, but only once.
//
// # Several workers
//
// Each worker counts in memory, and attempts at quick agents rarely cause a call to Redis. When a worker has charged an
// agent for a sixtieth of its budget since it last wrote to Redis, a goroutine adds these charges to the sum of all
// workers in Redis and adopts that sum. While a worker does not know the mean cost of an agent's attempts, each attempt
// reads the agent's values from Redis. So a worker does not spend a slot on each slow agent that another worker has
// measured.
//
// A call to Redis takes at most Config.Timeout. After a failed call, the worker does not call Redis for a second and
// counts alone. A worker writes to Redis even if there is no other worker, because `agent show` reads the values there.
// It writes rarely: at most once a second per slot.
//
// Invariants:
//   - All workers together use at most an agent's budget, plus its running attempts, plus the charges that are not in
//     Redis yet: a sixtieth of the budget per worker.
//   - A bucket never contains more than its size.
//   - A charge is lost only with its process (at most a sixtieth of the budget) or with Redis' data. After a loss in
//     Redis, the next addition of a worker restores the sum that this worker knows.
package effort
