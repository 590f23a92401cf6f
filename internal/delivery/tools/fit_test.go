package tools

import (
	"testing"

	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/mcpcall"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// TestCutList checks that Herald does not claim that an agent lacks a tool when Herald did not read the whole list.
func TestCutList(t *testing.T) {
	t.Parallel()
	j := job.Job{Kind: job.KindNewFeedback, Action: job.Action{ToolName: Feedback}}
	set := mcpcall.ToolSet{Tools: []mcpcall.Tool{{Name: "other"}}}
	for cut, want := range map[bool]string{
		false: "the agent offers no tool agent.receiveFeedback; it offers other",
		true:  "the agent offers no tool agent.receiveFeedback in the part of its list that Herald reads; it offers other",
	} {
		set.Cut = cut
		_, _, err := FitCall(t.Context(), nil, j, job.File{}, "", []string{Feedback}, set)
		if err == nil {
			t.Fatal("the tool was found")
		}
		heraldtest.Equal(t, "the error", err.Error(), want)
	}
}
