package store

import (
	"database/sql/driver"
	"embed"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"strings"

	"github.com/jackc/pgx/v5"
)

//go:embed sql/*.sql sql/parts/*.sql
var files embed.FS

// statements maps the name of each file sql/NAME.sql to its statement.
var statements = readStatements()

func readStatements() map[string]named {
	found, err := fs.Glob(files, "sql/*.sql")
	if err != nil {
		panic(err) // impossible: the directory is embedded
	}
	all := make(map[string]named, len(found))
	for _, name := range found {
		all[strings.TrimSuffix(path.Base(name), ".sql")] = numberArguments(includeParts(readFile(name)))
	}
	return all
}

func readFile(name string) string {
	text, err := files.ReadFile(name)
	if err != nil {
		panic(err)
	}
	return string(text)
}

var inclusion = regexp.MustCompile(`\{\{([a-z_]+) (\w+)\}\}`)

// includeParts replaces each {{NAME X}} in text by the SQL of sql/parts/NAME.sql, without comments and with X instead
// of its placeholder ROW or ROWS. So a rule that several statements need is written once, and Postgres plans it as a
// part of each.
func includeParts(text string) string {
	return inclusion.ReplaceAllStringFunc(text, func(use string) string {
		m := inclusion.FindStringSubmatch(use)
		part := comment.ReplaceAllString(readFile("sql/parts/"+m[1]+".sql"), "")
		return includeParts(strings.TrimSpace(rowName.ReplaceAllString(part, m[2])))
	})
}

var (
	comment = regexp.MustCompile(`(?m)^--.*\n`)
	rowName = regexp.MustCompile(`\bROWS?\b`)
)

// statement returns the text of sql/NAME.sql, for a statement whose arguments are $1, $2, … in the file. It panics if
// there is no such file; TestStatements checks all names.
func statement(name string) string { return namedStatement(name).text }

// namedStatement returns the statement sql/NAME.sql, whose arguments have names (@name) in the file. It panics if there
// is no such file.
func namedStatement(name string) named {
	q, ok := statements[name]
	if !ok {
		panic("there is no sql/" + name + ".sql")
	}
	return q
}

// named is a statement in which each @name was replaced by $1, $2, … when the program started. With pgx.NamedArgs
// alone, pgx would parse the text in every call, which takes about 50 µs for record.sql.
type named struct {
	text  string   // with $1, $2, …
	names []string // the names that $1, $2, … replaced
}

var argumentName = regexp.MustCompile(`@[a-z][a-z_]*`)

// numberArguments replaces each @name in text by $1, $2, …, in the order of their first occurrence, also in SQL
// comments.
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

// args returns the values of the statement's names in the order of $1, $2, …. If values lacks a name, pgx rejects the
// call.
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

// missingArgument is an argument that makes pgx reject the call with an error that names it.
type missingArgument string

// Value implements driver.Valuer. It always returns an error that names the missing argument, so the call with that
// argument fails.
func (name missingArgument) Value() (driver.Value, error) {
	return nil, fmt.Errorf("the statement's argument @%s is not given", string(name))
}
