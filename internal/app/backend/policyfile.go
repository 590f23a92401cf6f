package backend

import (
	"fmt"
	"log/slog"

	"github.com/agentherald/herald/internal/base/reload"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/job/policy"
	"github.com/agentherald/herald/internal/operator/config"
)

// PolicyFile holds the operator's default policy (HERALD_POLICY_FILE). Without a file, the policy is empty.
type PolicyFile struct{ *reload.File[policy.Policy] }

// OpenPolicyFile reads the file. changed is called after each change.
func OpenPolicyFile(cfg *config.Config, log *slog.Logger, changed func()) (*PolicyFile, error) {
	if cfg.PolicyFile == "" {
		return &PolicyFile{}, nil
	}
	f, err := reload.Open(reload.Config[policy.Policy]{Name: "policy file", Path: cfg.PolicyFile, Read: policy.ReadFile,
		Parse: func(raw []byte, read func(string) ([]byte, error)) (policy.Policy, error) {
			p, warnings, err := policy.Load(cfg.PolicyFile, raw, read)
			for _, w := range warnings {
				log.Warn("a filter of the policy file may have an unintended effect",
					"file", cfg.PolicyFile, "filter", w)
			}
			return p, err
		},
		Changed: func(_, p policy.Policy) bool {
			log.Info("the policy file changed", "file", cfg.PolicyFile, "filters", len(p.Filters))
			changed()
			return true
		}, Logger: log})
	if err != nil {
		return nil, fmt.Errorf("HERALD_POLICY_FILE: %w", err)
	}
	log.Info("read the policy file", "file", cfg.PolicyFile, "filters", len(f.Get().Filters))
	return &PolicyFile{f}, nil
}

// Order returns the order of the policy in force; "": it has none (store.Store.UseOrder).
func (f *PolicyFile) Order() string { return f.Get().Order }

// SkipJob applies the filters to a job's event (policy.Levels.SkipJob).
func (f *PolicyFile) SkipJob(j job.Job) (policy.Decision, string) {
	return policy.Levels{Default: f.Get()}.SkipJob(j)
}
