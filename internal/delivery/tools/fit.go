// Package tools adapts a job to the tools that an agent offers, and reads the answer of the tool for several
// deliveries. It sends no request. Deliveries and `worker agent probe` and check use the same code.
//
// Invariant: a delivery's arguments have at most maxArguments bytes of JSON and are valid for the schema of the tool.
package tools

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/agentherald/herald/internal/base/decode"
	"github.com/agentherald/herald/internal/base/text"
	"github.com/agentherald/herald/internal/delivery/classify"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/mcpcall"
	"github.com/agentherald/herald/internal/mcpcall/arguments"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/resolver/servers"
	"github.com/agentherald/herald/internal/store/ledger"
)

// The names of the tools for feedback (docs/tools). An agent may offer the second one too.
const (
	Feedback = "agent.receiveFeedback"      // one feedback in each call
	Batch    = "agent.receiveFeedbackBatch" // several in one call
)

// MetaKey is the name of the field that describes the delivery, in the _meta object of a tools/call request. See
// docs/design/calls.md.
const MetaKey = "io.agentherald/delivery"

// maxArguments bounds the arguments of one delivery, in bytes of JSON. A template can repeat a large file, so the bound
// of the file is not enough.
const maxArguments = 8 << 20

// Names returns the names under which an agent may offer the tool of job j, in the order in which they are tried:
// the name in the job, its built-in aliases, and its configured aliases, which the map aliases has under the tool's
// name. If the agent has an entry in the servers file (listed, otherwise nil), names that the entry does not allow are
// omitted. If no name is left, Names returns the failure of outcome.Agent.
func Names(j job.Job, aliases map[string][]string, listed *servers.Server) ([]string, error) {
	tool := j.Action.ToolName
	names := slices.Concat([]string{tool}, mcpcall.Aliases(tool), aliases[tool])
	if listed == nil {
		return names, nil
	}
	if names = listed.Allows(names); len(names) > 0 {
		return names, nil
	}
	return nil, outcome.Agent{Unlisted: requestedTool(j)}.Judge()
}

// requestedTool returns the tool of job j. Only the tool for feedback is not optional.
func requestedTool(j job.Job) outcome.Tool {
	return outcome.Tool{Name: j.Action.ToolName, Optional: j.Kind != job.KindNewFeedback}
}

// FitCall finds the first of names (Names) among the offered tools, and fits the arguments of job j to it. f is the
// job's file. FitCall waits until the budget decoding has enough memory to decode the schema and the file. If the agent
// offers the tool but the arguments do not fit, FitCall returns the tool and the error.
func FitCall(ctx context.Context, decoding *decode.Budget, j job.Job, f job.File, deliveryID string, names []string,
	offered mcpcall.ToolSet) (tool mcpcall.Tool, fitted Fitted, err error) {
	if tool, err = findTool(j, names, offered); err != nil {
		return tool, fitted, err
	}
	// Reserve memory for the worst case: the schema is decoded once, and the file once for each placeholder of the
	// template.
	copies := max(1, bytes.Count(j.Action.PayloadTemplate, []byte("{{")))
	release, err := decoding.Acquire(ctx, len(tool.InputSchema)+copies*len(f.Content))
	if err != nil {
		return tool, fitted, err
	}
	defer release()
	fitted, err = fitArguments(j, f, deliveryID, tool)
	return tool, fitted, err
}

// findTool returns the first of names that is among the offered tools. If none is, the error has the reason of
// outcome.Tool.Missing.
func findTool(j job.Job, names []string, offered mcpcall.ToolSet) (mcpcall.Tool, error) {
	if tool, ok := mcpcall.Find(offered.Tools, names[0], names[1:]); ok {
		return tool, nil
	}
	why := "the agent offers no tool " + j.Action.ToolName
	if len(names) > 1 {
		why += ", nor one of its aliases (" + strings.Join(names[1:], ", ") + ")"
	}
	if offered.Cut {
		why += " in the part of its list that Herald reads"
	}
	return mcpcall.Tool{}, outcome.Fail(requestedTool(j).Missing(), why+"; it offers "+describeTools(offered.Tools))
}

// describeTools returns a list of the agent's first few tools, with shortened names, for a message.
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

// Known converts an agent's tools to the form in which the agent's row stores them.
func Known(tools []mcpcall.Tool) []ledger.KnownTool {
	known := make([]ledger.KnownTool, len(tools))
	for i, t := range tools {
		known[i] = ledger.KnownTool{Name: t.Name, Schema: len(t.InputSchema) > 0}
	}
	return known
}

// Fitted is a delivery's arguments in the form that one tool accepts.
type Fitted struct {
	Arguments map[string]any
	Sent      json.RawMessage // Arguments as JSON
	Cleaned   bool            // arguments.Sanitize removed characters that make text look different from its content
}

// fitArguments fits the arguments of job j to the tool. f is the job's file. The error is a *mcpcall.SchemaError if the
// tool's schema does not accept the arguments. It has the reason invalid_job if the job's template cannot be filled or
// the arguments are larger than maxArguments.
func fitArguments(j job.Job, f job.File, deliveryID string, tool mcpcall.Tool) (Fitted, error) {
	args := j.Arguments(f, deliveryID)
	if len(j.Action.PayloadTemplate) > 0 {
		var err error
		if args, err = j.RenderTemplate(args); err != nil {
			return Fitted{}, outcome.Fail(outcome.InvalidJob, "action.payloadTemplate: "+err.Error())
		}
		args["deliveryId"] = deliveryID
	}
	fitted, err := mcpcall.Fit(tool, args)
	if err != nil {
		return Fitted{}, err
	}
	out, err := encodeArguments(fitted)
	if err == nil && len(out.Sent) > maxArguments {
		return Fitted{}, outcome.Fail(outcome.InvalidJob,
			fmt.Sprintf("the arguments are %d bytes of JSON; at most %d are sent", len(out.Sent), maxArguments))
	}
	return out, err
}

// encodeArguments sanitizes fitted arguments and encodes them as JSON.
func encodeArguments(fitted map[string]any) (out Fitted, err error) {
	out.Arguments, out.Cleaned = arguments.Sanitize(fitted)
	if out.Sent, err = json.Marshal(out.Arguments); err != nil {
		return Fitted{}, fmt.Errorf("write the arguments as JSON: %w", err)
	}
	return out, nil
}

// ListsNothing reports whether err, an error of tools/list, means that the agent does not know this method, so that it
// has no tools.
func ListsNothing(err error) bool {
	var call *mcpcall.CallError
	return errors.As(err, &call) && call.Stage == mcpcall.StageList && classify.NotATool(err)
}
