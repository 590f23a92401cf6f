package delivery

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/agentherald/herald/internal/decode"
	"github.com/agentherald/herald/internal/delivery/retry"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/mcpcall"
	"github.com/agentherald/herald/internal/mcpcall/arguments"
	"github.com/agentherald/herald/internal/reason"
	"github.com/agentherald/herald/internal/servers"
	"github.com/agentherald/herald/internal/store"
	"github.com/agentherald/herald/internal/text"
)

// This file adapts a job to an agent's known tools, without any request. `worker agent probe` uses the same code.

// maxArguments bounds the arguments of a call, in bytes of JSON. A template may contain a large file more than once.
const maxArguments = 8 << 20

// ToolNames returns the names of the tool to call, the best first: the job's own, the built-in aliases, the configured
// aliases. listed is the agent's entry in the servers file, or nil. Names that the entry does not allow are omitted; if
// none is left, ToolNames returns an error (retry.Bar).
func ToolNames(j job.Job, aliases map[string][]string, listed *servers.Server) ([]string, error) {
	tool := j.Action.ToolName
	names := slices.Concat([]string{tool}, mcpcall.Aliases(tool), aliases[tool])
	if listed == nil {
		return names, nil
	}
	if names = listed.Allows(names); len(names) > 0 {
		return names, nil
	}
	return nil, retry.Bar(missingToolReason(j.Kind),
		fmt.Sprintf("the servers file does not list %s among the tools that are called at this agent", tool))
}

// FitCall finds the job's tool, by its names (see ToolNames), among the tools that an agent offers, and fits the
// arguments to it. It waits until there is memory for decoding. If the tool exists but the arguments do not fit, it
// returns the tool with the error.
func FitCall(ctx context.Context, decoding *decode.Budget, j job.Job, f job.File, deliveryID string, names []string,
	offered []mcpcall.Tool) (tool mcpcall.Tool, fitted Fitted, err error) {
	if tool, err = findTool(j, names, offered); err != nil {
		return tool, fitted, err
	}
	// In the worst case, the schema is decoded once, and the feedback file once for each placeholder of the template.
	copies := max(1, bytes.Count(j.Action.PayloadTemplate, []byte("{{")))
	release, err := decoding.Acquire(ctx, len(tool.InputSchema)+copies*len(f.Content))
	if err != nil {
		return tool, fitted, err
	}
	defer release()
	fitted, err = fitArguments(j, f, deliveryID, tool)
	return tool, fitted, err
}

// findTool returns the first of names that the agent offers. If it offers none, the error has the reason of
// missingToolReason.
func findTool(j job.Job, names []string, offered []mcpcall.Tool) (mcpcall.Tool, error) {
	if tool, ok := mcpcall.Find(offered, names[0], names[1:]); ok {
		return tool, nil
	}
	why := "the agent offers no tool " + j.Action.ToolName
	if len(names) > 1 {
		why += ", nor one of its aliases (" + strings.Join(names[1:], ", ") + ")"
	}
	return mcpcall.Tool{}, retry.Fail(missingToolReason(j.Kind), why+"; it offers "+describeTools(offered))
}

// missingToolReason returns the reason if an agent does not offer the tool for this kind: tool_not_found, which rejects
// the delivery, for feedback, and tool_not_offered, which skips it, for the optional tools of all other kinds.
func missingToolReason(kind job.Kind) reason.Reason {
	if kind == job.KindNewFeedback {
		return reason.ToolNotFound
	}
	return reason.ToolNotOffered
}

// describeTools lists the first few of an agent's tools, for a message. It shortens the names, which the agent chose.
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

// KnownTools converts an agent's tools to the form that its row contains.
func KnownTools(tools []mcpcall.Tool) []store.KnownTool {
	known := make([]store.KnownTool, len(tools))
	for i, t := range tools {
		known[i] = store.KnownTool{Name: t.Name, Schema: len(t.InputSchema) > 0}
	}
	return known
}

// Fitted contains a job's arguments in the form that one tool accepts.
type Fitted struct {
	Arguments map[string]any
	Sent      json.RawMessage // Arguments as JSON
	Cleaned   bool            // misleading characters were removed
}

// fitArguments computes a delivery's arguments for a tool. The error is a *mcpcall.SchemaError if the tool's schema
// does not accept them, or has the reason invalid_job if the job's template is wrong or the arguments are too large.
func fitArguments(j job.Job, f job.File, deliveryID string, tool mcpcall.Tool) (Fitted, error) {
	args := j.Arguments(f, deliveryID)
	if len(j.Action.PayloadTemplate) > 0 {
		var err error
		if args, err = j.RenderTemplate(args); err != nil {
			return Fitted{}, retry.Fail(reason.InvalidJob, "action.payloadTemplate: "+err.Error())
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
		return Fitted{}, retry.Fail(reason.InvalidJob,
			fmt.Sprintf("the arguments are %d bytes of JSON; at most %d are sent", len(out.Sent), maxArguments))
	}
	return out, nil
}
