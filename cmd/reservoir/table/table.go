// Package table writes tables and numbers as text, for the command and the module bench.
package table

import (
	"strconv"
	"strings"
	"text/tabwriter"
)

// Text formats rows as columns, aligned right or left. Lines have no trailing blanks.
func Text(rows [][]string, right bool) string {
	var b strings.Builder
	w, end := tabwriter.NewWriter(&b, 0, 0, 3, ' ', 0), "\n"
	if right {
		w, end = tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight), "\t\n"
	}
	for _, row := range rows {
		_, _ = w.Write([]byte(strings.Join(row, "\t") + end)) // a builder does not fail
	}
	_ = w.Flush()
	lines := strings.Split(b.String(), "\n")
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], " ")
	}
	return strings.Join(lines, "\n")
}

// Within returns [Text] if that fits into width characters. Otherwise each row after the
// first is a paragraph, with a line for each cell and the cell's name from the first row.
func Within(width int, rows [][]string, right bool) string {
	text := Text(rows, right)
	if Fit(text, width) == text {
		return text
	}
	var all []string
	for _, row := range rows[1:] {
		var lines [][]string
		for i, cell := range row {
			lines = append(lines, []string{rows[0][i], cell})
		}
		all = append(all, Text(lines, false))
	}
	return strings.Join(all, "\n")
}

// Fit breaks lines that are longer than width characters, between words if possible.
// Continuation lines are indented further.
func Fit(text string, width int) string {
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		blanks := len(line) - len(strings.TrimLeft(line, " "))
		lines[i] = fold(line, strings.Repeat(" ", min(blanks+2, width/2)), width)
	}
	return strings.Join(lines, "\n")
}

// Wrap joins the words of s into lines of at most width characters. It breaks a word only
// if it is longer than that.
func Wrap(s string, width int) string {
	return fold(strings.Join(strings.Fields(s), " "), "", max(width, 1))
}

// fold breaks a line. It keeps a % with its number.
func fold(line, indent string, width int) string {
	letters := []rune(line)
	if len(letters) <= width {
		return line
	}
	at, blanks := width, len(line)-len(strings.TrimLeft(line, " "))
	for i, letter := range letters[:width+1] {
		if letter == ' ' && i > blanks && (i+1 == len(letters) || letters[i+1] != '%') {
			at = i
		}
	}
	first, rest := string(letters[:at]), strings.TrimLeft(string(letters[at:]), " ")
	return strings.TrimRight(first, " ") + "\n" + fold(indent+rest, indent, width)
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
