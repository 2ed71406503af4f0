// Package table writes tables and numbers as text, for the command and the module bench.
package table

import (
	"strconv"
	"strings"
	"text/tabwriter"
	"unicode/utf8"
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

// Within is Text if that fits lines of width letters. Otherwise each row after the first
// is a paragraph, with a line for each cell and its name.
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

// Fit breaks the lines of text that are longer than width letters, between words where
// that is possible. What goes on stands further in than the beginning of the line.
func Fit(text string, width int) string {
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		letters := []rune(line)
		if len(letters) <= width {
			continue
		}
		first := string(letters[:width])
		if at := strings.LastIndexByte(string(letters[:width+1]), ' '); strings.TrimSpace(first[:max(at, 0)]) != "" {
			first = first[:at]
		}
		indent := strings.Repeat(" ", min(len(line)-len(strings.TrimLeft(line, " "))+2, width/2))
		rest := Wrap(line[len(first):], width-len(indent))
		lines[i] = strings.TrimRight(first, " ") + "\n" + indent + strings.ReplaceAll(rest, "\n", "\n"+indent)
	}
	return strings.Join(lines, "\n")
}

// Wrap breaks s between words into lines of at most width letters, and words that are
// longer.
func Wrap(s string, width int) string {
	var b strings.Builder
	n := 0
	for i, word := range strings.Fields(s) {
		size := utf8.RuneCountInString(word)
		switch {
		case i == 0:
		case n+1+size > width && word[0] != '%': // which stays with its number
			b.WriteByte('\n')
			n = 0
		default:
			b.WriteByte(' ')
			n++
		}
		for n+size > max(width, 1) && n == 0 {
			cut := string([]rune(word)[:max(width, 1)])
			b.WriteString(cut + "\n")
			word, size = word[len(cut):], size-max(width, 1)
		}
		b.WriteString(word)
		n += size
	}
	return b.String()
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
