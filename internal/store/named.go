package store

import (
	"database/sql/driver"
	"embed"
	"fmt"
	"regexp"
	"strings"

	"github.com/jackc/pgx/v5"
)

//go:embed sql/*.sql
var files embed.FS

// statements are the files sql/*.sql by name.
var statements = readStatements()

func readStatements() map[string]named {
	found, err := files.ReadDir("sql")
	if err != nil {
		panic(err) // impossible: the directory is embedded
	}
	all := make(map[string]named, len(found))
	for _, f := range found {
		text, err := files.ReadFile("sql/" + f.Name())
		if err != nil {
			panic(err)
		}
		all[strings.TrimSuffix(f.Name(), ".sql")] = numberArguments(string(text))
	}
	return all
}

// statement returns the text of sql/NAME.sql. It panics if there is no such file; TestStatements checks all names.
func statement(name string) string { return namedStatement(name).text }

// namedStatement returns a statement with @names.
func namedStatement(name string) named {
	q, ok := statements[name]
	if !ok {
		panic("there is no sql/" + name + ".sql")
	}
	return q
}

// named is a statement whose @names are numbered when the program starts. With pgx.NamedArgs, pgx would parse the text
// in every call, which takes about 50 µs for record.sql.
type named struct {
	text  string   // with $1, $2, …
	names []string // name of $1, $2, …
}

var argumentName = regexp.MustCompile(`@[a-z][a-z_]*`)

// numberArguments replaces each @name in text by $1, $2, …, in the order of their first occurrence. It also replaces
// those in SQL comments.
func numberArguments(text string) (q named) {
	numbers := map[string]int{}
	q.text = argumentName.ReplaceAllStringFunc(text, func(name string) string {
		if numbers[name] == 0 {
			q.names = append(q.names, name[1:])
			numbers[name] = len(q.names)
		}
		return fmt.Sprintf("$%d", numbers[name])
	})
	return q
}

// args returns values in the order of the statement's parameters. If a value is missing, the call fails.
func (q named) args(values pgx.NamedArgs) []any {
	args := make([]any, len(q.names))
	for i, name := range q.names {
		value, ok := values[name]
		if !ok {
			value = missingArgument(name)
		}
		args[i] = value
	}
	return args
}

// missingArgument makes pgx reject the call.
type missingArgument string

// Value implements driver.Valuer.
func (name missingArgument) Value() (driver.Value, error) {
	return nil, fmt.Errorf("the statement's argument @%s is not given", string(name))
}
