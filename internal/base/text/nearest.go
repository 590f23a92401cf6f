package text

// FindNearest returns the word in right with the smallest edit distance to word, or "" if every distance is greater
// than most.
func FindNearest(word string, right []string, most int) (best string) {
	least := most + 1
	for _, r := range right {
		if d := editDistance(word, r, least); d < least {
			least, best = d, r
		}
	}
	return best
}

// editDistance returns the Levenshtein distance of a and b: the number of bytes to insert, delete or replace. It
// returns limit if the distance is limit or more.
func editDistance(a, b string, limit int) int {
	if max(len(a), len(b))-min(len(a), len(b)) >= limit {
		return limit
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return min(row[len(b)], limit)
}
