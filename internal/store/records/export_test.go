package records

// For the tests of lists and plans, which are in package records_test.
var (
	Statements   = statements
	FailingFirst = sortedPage(placedAgents, `p.calls, p.failed, 0`, SortFailing, ` LIMIT $1`)
)
