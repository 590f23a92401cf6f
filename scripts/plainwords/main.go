// Command plainwords finds sentences that are hard to read in comments (Go, SQL) and in Markdown, and fails if their share is too large.
// It lists the sentences and the shares.
//
// It reads the files that git knows, joins the lines of a comment or paragraph into sentences, and looks for two habits: a
// subordinate clause in the place of a noun ("what is left", "whoever asks"), and verbs that do not name an action
// ("tells", "stands", "is had"). A match is a pointer for the writer, so a small share is allowed.
package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"

	"github.com/agentherald/herald/scripts/script"
)

// limits are the shares of sentences, in percent, above which the command fails.
var limits = map[string]float64{"comments": 1, "test comments": 1, "SQL comments": 1, "Markdown": 2}

func main() {
	script.Run("plainwords", func(context.Context) { script.Check(run()) })
}

func run() error {
	out := script.Must(exec.Command("git", "ls-files", "*.go", "*.sql", "*.md").Output())
	all, hard := map[string]int{}, map[string]int{}
	for _, path := range strings.Fields(string(out)) {
		text := string(script.Must(os.ReadFile(path)))
		kind := kindOf(path, text)
		for _, p := range readParagraphs(kind, text) {
			for _, sentence := range splitSentences(p.text) {
				all[kind]++
				if isHard(sentence) {
					hard[kind]++
					fmt.Printf("%s:%d: %s\n", path, p.line, sentence)
				}
			}
		}
	}
	return report(all, hard)
}

// report prints the shares and returns an error that names those above their limits.
func report(all, hard map[string]int) error {
	var above []string
	for _, kind := range []string{"comments", "test comments", "SQL comments", "Markdown"} {
		share := 100 * float64(hard[kind]) / float64(max(all[kind], 1))
		fmt.Printf("%-14s %5d of %5d sentences are hard to read: %.1f %% (limit %g %%)\n", kind, hard[kind], all[kind], share, limits[kind])
		if share > limits[kind] {
			above = append(above, kind)
		}
	}
	if above != nil {
		return fmt.Errorf("too many sentences are hard to read: %s. CONTRIBUTING.md says how to write", strings.Join(above, ", "))
	}
	return nil
}

// kindOf returns the kind of prose in a file; "" if it is not written by hand.
func kindOf(path, text string) string {
	head, _, _ := strings.Cut(text, "\npackage ")
	switch {
	case strings.Contains(path, "testdata/"), strings.Contains(head, "Code generated"):
		return ""
	case strings.HasSuffix(path, "_test.go"):
		return "test comments"
	case strings.HasSuffix(path, ".go"):
		return "comments"
	case strings.HasSuffix(path, ".sql"):
		return "SQL comments"
	}
	return "Markdown"
}

// paragraph is prose and the line on which it begins.
type paragraph struct {
	line int
	text string
}

var commentLine = regexp.MustCompile(`^\s*(?://|--)(?:$| +(.*))`)

// readParagraphs returns the comments of code, or the paragraphs, list items and table cells of Markdown without its code.
func readParagraphs(kind, text string) (found []paragraph) {
	var p paragraph
	end := func() {
		if strings.TrimSpace(p.text) != "" {
			found = append(found, p)
		}
		p = paragraph{}
	}
	add := func(line int, words string) {
		if p.line == 0 {
			p.line = line
		}
		p.text += " " + strings.TrimSpace(words)
	}
	isCode := false
	for i, line := range strings.Split(text, "\n") {
		trimmed := strings.TrimSpace(line)
		switch {
		case kind == "":
			return nil
		case kind != "Markdown":
			if m := commentLine.FindStringSubmatch(line); m != nil && m[1] != "" {
				add(i+1, m[1])
			} else {
				end()
			}
		case strings.HasPrefix(trimmed, "```"):
			isCode = !isCode
			end()
		case isCode:
		case trimmed == "", strings.HasPrefix(trimmed, "#"), strings.HasPrefix(trimmed, "<!--"):
			end()
		case strings.HasPrefix(trimmed, "|"):
			end()
			for _, cell := range strings.Split(strings.Trim(trimmed, "|"), " | ") {
				add(i+1, cell)
				end()
			}
		default:
			if strings.HasPrefix(trimmed, "- ") || strings.HasPrefix(trimmed, "* ") {
				end()
			}
			add(i+1, trimmed)
		}
	}
	end()
	return found
}

var sentenceEnd = regexp.MustCompile(`[.!?:;](?:\s+|$)`)

// splitSentences splits prose at ends of sentences, and at colons and semicolons, so that each part has one subject.
func splitSentences(text string) (sentences []string) {
	for _, s := range sentenceEnd.Split(text, -1) {
		if s = strings.TrimSpace(s); strings.Contains(s, " ") {
			sentences = append(sentences, s)
		}
	}
	return sentences
}

var (
	quoted = regexp.MustCompile("`[^`]*`|\"[^\"]*\"|“[^”]*”")
	// clauseAsNoun is a pronoun that begins a clause without a noun before it.
	clauseAsNoun = regexp.MustCompile(`(?i)(^|[,(] ?|\b(of|for|to|by|in|with|from|than|as|and|or|but|is|are|at|on|into) )(what|whoever|whatever|who) (\w+s|is|are|was|were|had|it|they|one|a|the|other|others|can|may|must|would|not)\b`)
	vagueWord    = regexp.MustCompile(`(?i)\b(nobody|somebody|whoever|whatever|tells?|told|hears?|heard|stands?|stood|(be|was|is|were|are) had|is none|are none|owes?|comes? to|came to|let go|no more|any more|given back|gives back)\b`)
)

// isHard reports whether a sentence has one of the two habits. Names and quotations are left out.
func isHard(sentence string) bool {
	sentence = quoted.ReplaceAllString(sentence, "x")
	words := strings.Fields(strings.ToLower(sentence))
	if len(words) > 0 && slices.Contains([]string{"what", "who", "whoever", "whatever", "nobody", "somebody"}, words[0]) {
		return true
	}
	return clauseAsNoun.MatchString(sentence) || vagueWord.MatchString(sentence)
}
