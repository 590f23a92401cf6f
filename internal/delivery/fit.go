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

// What a job means at an agent whose tools are known, without asking anybody: `worker agent probe` shows it with the
// same code.

// maxArguments bounds what is sent, in bytes of JSON: a template may name a large file more than once.
const maxArguments = 8 << 20

// ToolNames are the names that a job's tool may be called by at an agent, the best first: its own, the built-in
// aliases, the configured ones. listed is the agent's entry in the servers file (nil: it has none); an error: that lets
// none of them be called.
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

// FitCall finds a job's tool among those that an agent offers, by names (ToolNames), and fits the arguments to it when
// their turn to be decoded comes. Beside an error it returns the tool that does not take them, if there is one.
func FitCall(ctx context.Context, decoding *decode.Budget, j job.Job, f job.File, deliveryID string, names []string,
	offered []mcpcall.Tool) (tool mcpcall.Tool, fitted Fitted, err error) {
	if tool, err = findTool(j, names, offered); err != nil {
		return tool, fitted, err
	}
	// What is decoded at worst is the tool's schema, and the file in every place where a template may name it.
	copies := max(1, bytes.Count(j.Action.PayloadTemplate, []byte("{{")))
	release, err := decoding.Acquire(ctx, len(tool.InputSchema)+copies*len(f.Content))
	if err != nil {
		return tool, fitted, err
	}
	defer release()
	fitted, err = fitArguments(j, f, deliveryID, tool)
	return tool, fitted, err
}

// findTool finds the job's tool among those that an agent offers.
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

// missingToolReason: only the tool for feedback is one that every agent is to have (DESIGN §3).
func missingToolReason(kind job.Kind) reason.Reason {
	if kind == job.KindNewFeedback {
		return reason.ToolNotFound
	}
	return reason.ToolNotOffered
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

// KnownTools are an agent's tools as its row keeps them.
func KnownTools(tools []mcpcall.Tool) []store.KnownTool {
	known := make([]store.KnownTool, len(tools))
	for i, t := range tools {
		known[i] = store.KnownTool{Name: t.Name, Schema: len(t.InputSchema) > 0}
	}
	return known
}

// Fitted are a job's arguments as one tool takes them.
type Fitted struct {
	Arguments map[string]any
	Sent      json.RawMessage // the same as JSON
	Cleaned   bool            // characters were taken out of what strangers wrote
}

// fitArguments makes the arguments of a delivery for a tool. Errors are *mcpcall.SchemaError, or say that the job is
// to blame.
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
