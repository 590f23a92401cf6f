package outcome

import (
	"cmp"
	"fmt"
	"net/url"
	"regexp"
	"strings"

	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/netguard"
	"github.com/ethereum/go-ethereum/common"
)

// Subject describes the delivery for which NextStep is asked, as far as it is known. No field is trusted, because
// agents choose their own endpoints.
type Subject struct {
	Delivery string // id; empty: there is no delivery, for example in `worker agent probe`
	ChainID  uint64
	AgentID  string // decimal; empty: the agent is unknown
	Registry string // the agent's IdentityRegistry, in upper or lower case
	Endpoint string // in the form for display
	Tool     string // the tool that the job names
	Listed   bool   // the agent has an entry in the servers file
	Over     bool   // the delivery is final and will not be tried again
	Shower   string // "probe" or "resolve": the command that shows the step, which must not refer to itself
}

// NextStep returns a text for the operator: how to proceed with a delivery that ended, is held or waits for the reason
// r. The text is one sentence with a setting or a command to copy, or "nothing to do: …". Each reason has a
// text. For any other value of r, NextStep returns "".
//
// Callers compute the text when they show it and do not store it, because the right advice may change later.
func NextStep(r Reason, s Subject) string {
	for _, of := range []func(Reason, Subject) string{skippedStep, rejectedStep, heldStep, waitingStep, deadStep} {
		if step := of(r, s); step != "" {
			return step
		}
	}
	return ""
}

// skippedStep returns NextStep's text for the reasons that skip a delivery, and "" for others. Usually the agent's
// owner has to change something first.
func skippedStep(r Reason, s Subject) string {
	switch r {
	case NoURI:
		return "the agent's owner has to set a tokenURI in the identity registry" + s.thenReplay(r)
	case NoDocument:
		return "the agent's owner has to publish a registration document where its tokenURI leads" +
			s.refer(", see ", s.resolveCommand(), "") + s.thenReplay(r)
	case NoMCPEndpoint:
		return "the agent's owner has to register an MCP endpoint" + s.thenReplay(r)
	case AgentInactive:
		return `the agent's owner has to end "active": false in its registration document` + s.thenReplay(r)
	case AgentNotFound:
		return fmt.Sprintf("nothing to do, unless IDENTITY_REGISTRY_%d or the job names the wrong registry: "+
			"this one has no such agent", s.ChainID)
	case Revoked:
		return "nothing to do: the client took its feedback back before it was delivered"
	case ToolNotOffered:
		return "nothing to do: the agent does not ask for this kind of event; to get it, it has to offer the tool " +
			cmp.Or(s.Tool, "of its name")
	case NeverDelivered:
		return "nothing to do: the agent never got the feedback that this is about"
	case MinedAgain:
		return "nothing to do: the event that it would have taken back is on the chain again"
	}
	return ""
}

// rejectedStep returns NextStep's text for the reasons that reject or cancel a delivery, and "" for others. Without a
// change, another attempt would end the same way.
func rejectedStep(r Reason, s Subject) string {
	switch r {
	case InvalidJob:
		return "the sender of the job has to correct it as the error says, and enqueue it again"
	case EventNotFound:
		return fmt.Sprintf("compare the job with chain %[1]d and enqueue it corrected; "+
			"if the node of RPC_URL_%[1]d was wrong, mend that",
			s.ChainID) + s.thenReplay(r)
	case ToolNotFound:
		return fmt.Sprintf("the agent has to offer the tool %s; "+
			"one of another name counts when HERALD_TOOL_ALIASES says so",
			cmp.Or(s.Tool, "of the job")) + s.thenReplay(r)
	case SchemaMismatch:
		return "the agent has to accept these arguments" + s.refer(", see ", s.probeCommand(), "") + s.thenReplay(r)
	case HashMismatch:
		return "the file's owner has to serve the file that was hashed, or HERALD_HASH_POLICY=annotate delivers such " +
			"files labelled" + s.thenReplay(r)
	case EndpointUnverified:
		return "the operator of the endpoint has to name the agent as the error says, or HERALD_BINDING=warn lets it be " +
			"called all the same" + s.thenReplay(r)
	case AddressBlocked:
		return "if the address is intended, let it through by HERALD_ALLOW_NETWORKS, plain http by HERALD_ALLOW_HTTP=true, " +
			"and restart the worker" + s.thenReplay(r)
	case TransportRefused:
		return "the agent's owner has to register an http endpoint; a command is run when HERALD_STDIO_COMMANDS lists " +
			"exactly it" + s.thenReplay(r)
	case AuthFailed:
		return "the headers that came with the job were refused, and are not replaced: once the agent accepts them" +
			s.replayAfter(r)
	case ToolError:
		return "the agent's tool ran and refused: ask its author; once that is mended" + s.replayAfter(r)
	case BadResponse:
		return "the agent's author has to mend its answer" + s.refer(", see ", s.probeCommand(), "") + s.thenReplay(r)
	case Operator:
		return "nothing to do: an operator cancelled it; to deliver it all the same" + s.replayAfter(r)
	case Reorg:
		return "nothing to do: its block left the chain; it is queued anew when its event is mined again"
	}
	return ""
}

// heldStep returns NextStep's text for the reasons that hold a delivery, and "" for others. The step that it names
// releases the delivery.
func heldStep(r Reason, s Subject) string {
	switch r {
	case AuthRequired:
		if s.Listed {
			return "give the agent auth or headers in HERALD_SERVERS_FILE; that releases its deliveries"
		}
		if s.AgentID == "" {
			return "store a token for the agent: worker token set --help"
		}
		return fmt.Sprintf("store a token: worker token set %s%s (where it wants OAuth: worker token login %s%s)",
			s.agentArgument(), s.originOption(), s.agentArgument(), s.originOption())
	case AgentDisabled:
		if s.Listed {
			return `say "enabled": true of the agent in HERALD_SERVERS_FILE, or if its row is disabled: worker agent enable ` +
				s.agentArgument()
		}
		return "enable the agent: worker agent enable " + s.agentArgument()
	case HeldUnknown:
		if s.Delivery == "" {
			return "ask the agent's author whether the call arrived"
		}
		return fmt.Sprintf("ask the agent's author whether deliveryId %[1]s arrived; if not: worker delivery replay %[1]s; "+
			"if it did: worker delivery cancel %[1]s", s.Delivery)
	case ChainUnconfigured:
		return fmt.Sprintf("set RPC_URL_%d and restart the worker, which releases its deliveries", s.ChainID)
	case GatewayUnconfigured:
		return "set ARWEAVE_GATEWAY and restart the worker, which releases its deliveries"
	}
	return ""
}

// waitingStep returns NextStep's text for the reasons of a delivery that continues automatically, and "" for others.
// The operator can only look for the cause.
func waitingStep(r Reason, s Subject) string {
	const again = "nothing to do: it is tried again by itself"
	switch r {
	case NotConfirmed:
		return "nothing to do: it is delivered once its block has as many confirmations as HERALD_CONFIRMATIONS asks for"
	case AgentBusy, BehindEarlier, Throttled, OverBudget:
		return again
	case BreakerOpen:
		return again + ", after one probe call succeeded" + s.refer("; to see the fault: ", s.probeCommand(), "")
	}
	if s.Over {
		return ""
	}
	switch r {
	case ChainUnavailable:
		return again + fmt.Sprintf("; if the node of RPC_URL_%d stays away, set another: worker doctor", s.ChainID)
	case ContentUnavailable:
		return again + ", and after six failures the feedback is delivered without its file" +
			s.refer("; to see what is fetched: ", s.resolveCommand(), "")
	case ConnectFailed, Timeout, RateLimited, ServerError, Unknown:
		return again + s.refer("; to see how the agent does: ", s.probeCommand(), "")
	case InternalError:
		return again + "; the worker's log says more of it"
	}
	return ""
}

// deadStep returns NextStep's text for a delivery that is dead because its attempts or its time are used up, and "" for
// other reasons.
func deadStep(r Reason, s Subject) string {
	switch r {
	case ChainUnavailable:
		return fmt.Sprintf("once the node of RPC_URL_%d answers (worker doctor)", s.ChainID) + s.replayAfter(r)
	case ContentUnavailable:
		return "once the document that it needs can be fetched" + s.refer(" (", s.resolveCommand(), ")") + s.replayAfter(r)
	case ConnectFailed, Timeout, RateLimited, ServerError:
		return "once the agent answers again" + s.refer(" (", s.probeCommand(), ")") + s.replayAfter(r)
	case Unknown:
		return "ask the agent's author whether it arrived; if not" + s.replayAfter(r)
	case InternalError:
		return "see the worker's log for the cause; once that is mended" + s.replayAfter(r)
	case Expired:
		return "if it is still wanted" + s.replayAfter(r)
	}
	return ""
}

// thenReplay returns "; then" and the command of replayAfter, or "" without a command. It follows a sentence about a
// change that the agent's owner or the operator has to make first.
func (s Subject) thenReplay(r Reason) string {
	if replay := s.replayAfter(r); replay != "" {
		return "; then" + replay
	}
	return ""
}

// replayAfter returns the end of a sentence, ": worker delivery replay …": the command that replays the delivery or, if
// s names none, all deliveries of the agent that ended for the reason. It returns "" if s names neither.
func (s Subject) replayAfter(r Reason) string {
	switch {
	case s.Delivery != "":
		return ": worker delivery replay " + s.Delivery
	case s.AgentID != "":
		return fmt.Sprintf(": worker delivery replay --agent %s --reason %s --yes", s.agentName(), r)
	}
	return ""
}

// refer returns the command between before and after, or "" if the step is part of the command's own output.
func (s Subject) refer(before, command, after string) string {
	if s.Shower != "" && strings.HasPrefix(command, "worker agent "+s.Shower+" ") {
		return ""
	}
	return before + command + after
}

func (s Subject) probeCommand() string { return "worker agent probe " + s.agentArgument() }

func (s Subject) resolveCommand() string { return "worker agent resolve " + s.agentArgument() }

// agentArgument returns the agent as an argument of a command: CHAIN:AGENT, and --registry if the agent's registry is
// not the IdentityRegistry that Herald knows for the chain. If the agent is unknown, it returns the word "CHAIN:AGENT".
func (s Subject) agentArgument() string {
	if s.AgentID == "" {
		return "CHAIN:AGENT"
	}
	known, _ := erc8004.KnownDeployment(s.ChainID)
	if common.IsHexAddress(s.Registry) && common.HexToAddress(s.Registry) != known.Identity {
		return s.agentName() + " --registry " + common.HexToAddress(s.Registry).Hex()
	}
	return s.agentName()
}

// agentName returns the agent as CHAIN:AGENT, without its registry.
func (s Subject) agentName() string { return fmt.Sprintf("%d:%s", s.ChainID, s.AgentID) }

// plainURL matches a URL that is safe in a shell without quotes, and quotedURL one that is safe in single quotes. An
// agent's URL may contain "$(…)".
var (
	plainURL  = regexp.MustCompile(`^https?://(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]+)?(?:/[A-Za-z0-9/._~%@:+=,-]*)?$`)
	quotedURL = regexp.MustCompile(`^https?://(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]+)?/[!-&(-~]*$`)
)

// maxOption is the number of bytes above which OriginOption omits a URL, because it is too long to be copied from a
// terminal.
const maxOption = 300

// OriginOption returns the option " --origin URL" of `worker token set` and `login` for an operator to copy, in single
// quotes if the shell needs them, or "" if the URL is too long or unsafe to copy. Without the option, the command asks
// for the origin.
func OriginOption(rawURL string) string {
	switch {
	case len(rawURL) > maxOption:
		return ""
	case plainURL.MatchString(rawURL):
		return " --origin " + rawURL
	case quotedURL.MatchString(rawURL):
		return " --origin '" + rawURL + "'"
	}
	return ""
}

// originOption returns OriginOption for the agent's endpoint (Subject.Endpoint, which has no query).
func (s Subject) originOption() string {
	u, err := url.Parse(s.Endpoint)
	if err != nil || u.Host == "" {
		return ""
	}
	path := u.EscapedPath()
	if path == "/" {
		path = ""
	}
	return OriginOption(string(netguard.OriginOf(u)) + path)
}
