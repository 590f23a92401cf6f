// Package effort gives every agent a budget of worker time, so that agents that take long leave room for the others
// (DESIGN §5). It counts; which of a worker's slots costly agents may have is package delivery's (newcomers.go,
// effort.go), and what an origin or endpoint gets is package ratelimit's.
//
// # The budget
//
// An agent (chain, identity registry, agent id) has a bucket of Config.Size seconds of worker time, which refills by as
// much in a minute. What its attempts cost is taken out of it when they end, also where more is taken than was left: a
// call of 25 s out of 10 s leaves -15 s, and the next one waits until that is refilled. Prices are in prices.go.
//
// An attempt under way is reserved for: what the agent's latest attempts cost in the mean, or what it took so far if
// that is more. Who has used and reserved as much as the bucket holds is refused, with a time to come back of its own.
// So an agent that takes 25 s of 60 s has three attempts under way at most, and one in the long run.
//
// Files that feedback names are chosen by whoever gives it. They may eat half of a bucket: with that gone only
// deliveries that have a file to fetch wait, else two feedbacks a minute that name a host which never answers would
// keep an agent from everything.
//
// A replay is an attempt like others, charged and refused as they are: in bulk it would take the slots of what is due.
// An operator's probe is neither. It has no slot, and is what one looks at an agent with that has nothing left.
//
// # Why a budget alone is not enough
//
// 50 agents that take 25 s and may have 60 s a minute each may have 50 slots all the time, and a worker has 32. A
// smaller budget does not help: the agents are only more then. So what is costly has a part of the slots: an agent is
// costly while its latest attempts took longer than a second in the mean, or while it has used half of its budget
// (Hold.Costly). By default these share 16 of 32 slots, and together with newcomers 24: however many there are, 8 slots
// are for who takes less than a second, which is more than 8 deliveries a second at the least, and hundreds at 20 ms.
// The budget then says who of the costly gets the 16: three each at a time, one in the long run. A call under way cannot
// be taken back, so slots stay empty for who is quick. Who has no quick agents, and slow ones only, gives the worker
// more slots (HERALD_CONCURRENCY).
//
// What this cannot prevent: agents that were quick until now, and from one moment on take long, hold the slots that
// their calls under way have, once.
//
// # Workers together
//
// Each worker counts in memory, and that is all an attempt at a quick agent pays. Once a sixtieth of a budget has come
// together that Redis was not told of, a goroutine adds it to what all workers spent there, and takes over the sum and
// the mean. An agent that this process has not met is asked for in Redis once, since a restarted worker must not
// give a slot to each slow agent to learn it anew. A question has Config.Timeout; after one that failed Redis is left
// alone for a second, and each worker counts by itself. A worker that is the only one tells Redis all the same: it is at
// most as many seconds as it has slots, and `agent show` reads it there.
//
// Invariants: the workers together spend no more than the budget, what is under way, and a sixtieth for each worker
// that Redis was not told of. A bucket is never fuller than its size, and no charge is lost but with the process that
// had it (a sixtieth) or the Redis that had all, which gets what a worker knows with its next charge.
package effort
