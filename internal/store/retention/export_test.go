package retention

// Statements are the package's SQL statements, for TestRetentionPlans.
var Statements = statements
