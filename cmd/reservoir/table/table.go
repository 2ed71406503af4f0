// Package table writes tables and numbers as text, for the command and the module bench.
package table

import (
	"strconv"
	"strings"
	"text/tabwriter"
)

// Text puts cells into columns. Without right, they begin below one another. No line
// ends in blanks.
func Text(rows [][]string, right bool) string {
	var b strings.Builder
	w, end := tabwriter.NewWriter(&b, 0, 0, 3, ' ', 0), "\n"
	if right {
		w, end = tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight), "\t\n"
	}
	for _, row := range rows {
		_, _ = w.Write([]byte(strings.Join(row, "\t") + end)) // to a builder
	}
	_ = w.Flush()
	lines := strings.Split(b.String(), "\n")
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], " ")
	}
	return strings.Join(lines, "\n")
}

// Commas writes n with thousands separators.
func Commas(n int64) string {
	s := strconv.FormatInt(n, 10)
	digits := strings.TrimPrefix(s, "-")
	sign := s[:len(s)-len(digits)]
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return sign + digits
}
