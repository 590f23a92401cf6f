package outcome

// Agent contains the facts about an agent that end or hold its deliveries without a request to it. Unknown facts have
// zero values.
type Agent struct {
	Filter       string // the filter of its policy that skips the event, as a sentence
	FileDisables bool   // its entry in the servers file (HERALD_SERVERS_FILE) says "enabled": false
	Disabled     bool   // its policy says "enabled": false
	RowDisables  bool   // an operator disabled it, or Herald did, because all its calls failed
	Inactive     bool   // its registration document says "active": false
	Unlisted     Tool   // the delivery's tool, if the servers file lists only other tools
}

// Tool is the tool that a delivery calls.
type Tool struct {
	Name     string
	Optional bool // the agent need not have it
}

// Missing returns the reason for an agent without the tool: tool_not_offered, which skips the delivery, if the tool is
// optional, and otherwise tool_not_found, which rejects it.
func (t Tool) Missing() Reason {
	if t.Optional {
		return ToolNotOffered
	}
	return ToolNotFound
}

// Judge returns the failure of each delivery to the agent, or nil if the agent may be called. Call it only after the
// event check, or for an agent that an operator named. Before the check, a job may name a wrong agent, and the failure
// of that agent would end the delivery to the right one.
func (a Agent) Judge() error {
	switch {
	case a.Filter != "":
		return Fail(Filtered, a.Filter)
	case a.FileDisables:
		return Fail(AgentDisabled, "the servers file disables the agent (enabled: false); "+
			"its deliveries are released when the file enables it")
	case a.Disabled:
		return Fail(AgentDisabled, "the agent's policy disables it (enabled: false); its deliveries are released "+
			"when the policy enables it")
	case a.RowDisables:
		return Fail(AgentDisabled, "the agent is disabled: `worker agent enable` releases its deliveries")
	case a.Inactive:
		return Fail(AgentInactive, "the agent's registration says that it is inactive")
	case a.Unlisted != Tool{}:
		return Bar(a.Unlisted.Missing(),
			"the servers file does not list "+a.Unlisted.Name+" among the tools that are called at this agent")
	}
	return nil
}
