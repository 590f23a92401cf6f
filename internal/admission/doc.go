// Package admission decides whether an attempt may go on now, and says why its delivery waits if not.
//
// An attempt has a slot of its worker when it meets the gates. It passes them in this order:
//
//  1. AdmitAgent: the agent's effort budget (package effort) has worker time left.
//  2. AdmitAgent: the agent's groups have a free slot (groups.go). Agents without a recent success are in such groups,
//     and agents whose attempts take long.
//  3. AdmitDomain: the domain of a file or an endpoint has a free slot, if the agent has no recent success.
//  4. AdmitRate: the rate in the agent's policy allows a call now.
//  5. AdmitOrigin: the endpoint's origin accepts another call (origins.go, package ratelimit).
//
// A check of the event, a reading of the agent's registration and a fetch of a file need no gate before they begin. If
// they take longer than a second, AdmitCheck, AdmitResolution and AdmitFile require a free slot of the groups of slow
// steps, or end them.
//
// Workers share the state of an agent's budget and of an origin in Redis (package versioned). The rules are in Go.
//
// A Pass has the worker time and the group permits that an attempt got at the gates. Leave gives both back.
//
// A refusal is a free wait (outcome.Pause): it costs the delivery no attempt, and its text is the sentence that the
// log, the page and the API show. Package delivery asks each gate when it knows what the gate needs: the agent after
// the event check, the endpoint after it was resolved, the origin before the first request.
package admission
