package delivery

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/agentherald/herald/internal/delivery/retry"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/mcpcall"
	"github.com/agentherald/herald/internal/mcpcall/arguments"
	"github.com/agentherald/herald/internal/servers"
	"github.com/agentherald/herald/internal/text"
)

// What a job means at an agent whose tools are known, without asking anybody: `worker agent probe` shows it with the
// same code.

// maxArguments bounds what is sent, in bytes of JSON: a template may name a large file more than once.
const maxArguments = 8 << 20

// ToolNames are the names under which a tool is looked for at an agent, the best first: its own, the built-in aliases,
// the configured ones. listed is what the servers file says of the agent, nil: nothing. None: it lets none of them be
// called.
func ToolNames(tool string, aliases map[string][]string, listed *servers.Server) []string {
	names := slices.Concat([]string{tool}, mcpcall.Aliases(tool), aliases[tool])
	if listed != nil {
		return listed.Allows(names)
	}
	return names
}

// NoTool is how a delivery ends whose tool is not called by any of names; it depends on the kind (DESIGN §3). offered
// are the tools that the agent has.
func NoTool(kind job.Kind, tool string, names []string, offered []mcpcall.Tool) error {
	reason, end := retry.ToolNotOffered, retry.Fail
	if kind == job.KindNewFeedback {
		reason = retry.ToolNotFound
	}
	why := "the agent offers no tool " + tool
	switch {
	case len(names) == 0:
		end = retry.Bar
		why = fmt.Sprintf("the servers file does not list %s among the tools that are called at this agent", tool)
	case len(names) > 1:
		why += ", nor one of its aliases (" + strings.Join(names[1:], ", ") + "); it offers " + describeTools(offered)
	default:
		why += "; it offers " + describeTools(offered)
	}
	return end(reason, why)
}

// describeTools names the first few of an agent's tools, for a message. The names are the agent's, and each is told in
// part at most.
func describeTools(tools []mcpcall.Tool) string {
	const most, longest = 10, 64
	if len(tools) == 0 {
		return "no tools"
	}
	var names []string
	for _, t := range tools[:min(len(tools), most)] {
		names = append(names, text.Excerpt(t.Name, longest))
	}
	text := strings.Join(names, ", ")
	if more := len(tools) - most; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// Fitted are a job's arguments as one tool takes them.
type Fitted struct {
	Arguments map[string]any
	Sent      json.RawMessage // the same as JSON
	Cleaned   bool            // characters were taken out of what strangers wrote
}

// Fit makes the arguments of a delivery for a tool. Errors are *mcpcall.SchemaError, or say that the job is to blame.
func Fit(j job.Job, f job.File, deliveryID string, tool mcpcall.Tool) (Fitted, error) {
	args := j.Arguments(f, deliveryID)
	if len(j.Action.PayloadTemplate) > 0 {
		var err error
		if args, err = j.RenderTemplate(args); err != nil {
			return Fitted{}, retry.Fail(retry.InvalidJob, "action.payloadTemplate: "+err.Error())
		}
		args["deliveryId"] = deliveryID
	}
	fitted, err := mcpcall.Fit(tool, args)
	if err != nil {
		return Fitted{}, err
	}
	var out Fitted
	out.Arguments, out.Cleaned = arguments.Sanitize(fitted)
	out.Sent, err = json.Marshal(out.Arguments)
	switch {
	case err != nil:
		return Fitted{}, fmt.Errorf("write the arguments as JSON: %w", err)
	case len(out.Sent) > maxArguments:
		return Fitted{}, retry.Fail(retry.InvalidJob,
			fmt.Sprintf("the arguments are %d bytes of JSON; at most %d are sent", len(out.Sent), maxArguments))
	}
	return out, nil
}
