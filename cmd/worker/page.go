package main

import "fmt"

// maxPage is the longest page of a list.
const maxPage = 1000

// checkLimit refuses pages that no list has.
func checkLimit(limit int) error {
	if limit < 1 || limit > maxPage {
		return &misuseError{fmt.Sprintf("--limit %d is not between 1 and %d", limit, maxPage)}
	}
	return nil
}

// cutPage takes rows that were listed with one more than the page holds. That one only tells that there is another page: it is cut off, and
// next is the cursor of the page's last row. On the last page next is empty.
func cutPage[T any](rows []T, limit int, cursor func(T) string) (page []T, next string) {
	if rows == nil {
		rows = []T{} // a list in JSON, not null
	}
	if len(rows) <= limit {
		return rows, ""
	}
	return rows[:limit], cursor(rows[limit-1])
}

// printNext says how the next page is had, if there is one.
func printNext(a *app, next string) error {
	if next == "" {
		return nil
	}
	_, err := fmt.Fprintf(a.out, "more: --cursor %s\n", next)
	return err
}
