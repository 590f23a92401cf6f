package postgres

import (
	"database/sql/driver"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"
)

// Statements maps the name of each file sql/NAME.sql of a package to a function that returns its statement.
type Statements map[string]func() Statement

// ReadStatements finds the files sql/*.sql. A file, and the files sql/parts/*.sql that it includes, are read when the
// statement is first used, because a command needs few of them, and reading all takes a fifth of its start. It panics
// if a file cannot be read, because the files are embedded.
func ReadStatements(files fs.FS) Statements {
	found, err := fs.Glob(files, "sql/*.sql")
	if err != nil {
		panic(err)
	}
	all := make(Statements, len(found))
	for _, name := range found {
		all[strings.TrimSuffix(path.Base(name), ".sql")] = sync.OnceValue(func() Statement {
			return numberArguments(includeParts(files, readFile(files, name)))
		})
	}
	return all
}

func readFile(files fs.FS, name string) string {
	text, err := fs.ReadFile(files, name)
	if err != nil {
		panic(err)
	}
	return string(text)
}

var inclusion = regexp.MustCompile(`\{\{([a-z_]+) (\w+)\}\}`)

// includeParts replaces each {{NAME X}} in text by the SQL of sql/parts/NAME.sql, without comments and with X instead
// of its placeholder ROW or ROWS. So a rule that several statements need is written once, and Postgres plans it as a
// part of each.
func includeParts(files fs.FS, text string) string {
	return inclusion.ReplaceAllStringFunc(text, func(use string) string {
		m := inclusion.FindStringSubmatch(use)
		part := comment.ReplaceAllString(readFile(files, "sql/parts/"+m[1]+".sql"), "")
		return includeParts(files, strings.TrimSpace(rowName.ReplaceAllString(part, m[2])))
	})
}

var (
	comment = regexp.MustCompile(`(?m)^--.*\n`)
	rowName = regexp.MustCompile(`\bROWS?\b`)
)

// Text returns the text of sql/NAME.sql, for a statement whose arguments are $1, $2, … in the file. It panics if there
// is no such file; the tests check all names.
func (s Statements) Text(name string) string { return s.Named(name).Text }

// Named returns the statement sql/NAME.sql, whose arguments have names (@name) in the file. It panics if there is no
// such file.
func (s Statements) Named(name string) Statement {
	read, ok := s[name]
	if !ok {
		panic("there is no sql/" + name + ".sql")
	}
	return read()
}

// Statement is a statement in which each @name was replaced by $1, $2, … once. With pgx.NamedArgs alone, pgx would
// parse the text in every call, which takes about 50 µs for record.sql.
type Statement struct {
	Text  string   // with $1, $2, …
	Names []string // the names that $1, $2, … replaced
}

var argumentName = regexp.MustCompile(`@[a-z][a-z_]*`)

// numberArguments replaces each @name in text by $1, $2, …, in the order of their first occurrence, also in SQL
// comments.
func numberArguments(text string) (q Statement) {
	numbers := map[string]int{}
	q.Text = argumentName.ReplaceAllStringFunc(text, func(name string) string {
		if numbers[name] == 0 {
			q.Names = append(q.Names, name[1:])
			numbers[name] = len(q.Names)
		}
		return fmt.Sprintf("$%d", numbers[name])
	})
	return q
}

// Args returns the values of the statement's names in the order of $1, $2, …. If values lacks a name, pgx rejects the
// call.
func (q Statement) Args(values pgx.NamedArgs) []any {
	args := make([]any, len(q.Names))
	for i, name := range q.Names {
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
