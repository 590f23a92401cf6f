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

// statements are the texts of sql/*.sql by name.
var statements = readStatements()

func readStatements() map[string]named {
	found, err := files.ReadDir("sql")
	if err != nil {
		panic(err) // it is part of the binary
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

// statement is the text of sql/NAME.sql. TestStatements finds a name that has no file.
func statement(name string) string { return namedStatement(name).text }

// namedStatement is a statement with @names.
func namedStatement(name string) named {
	q, ok := statements[name]
	if !ok {
		panic("there is no sql/" + name + ".sql")
	}
	return q
}

// named is a statement with @names, numbered once when it is read: pgx would parse a text with pgx.NamedArgs in every
// call, which costs record.sql some 50 µs.
type named struct {
	text  string   // with $1, $2, …
	names []string // of $1, $2, …
}

var argumentName = regexp.MustCompile(`@[a-z][a-z_]*`)

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

// args puts values in the order of the statement. One that is missing is an error of the call.
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

// missingArgument makes pgx refuse the call.
type missingArgument string

// Value implements driver.Valuer.
func (name missingArgument) Value() (driver.Value, error) {
	return nil, fmt.Errorf("the statement's argument @%s is not given", string(name))
}
