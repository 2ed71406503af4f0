// Package table writes tables and numbers as text, for the command and the module test.
package table

import (
	"fmt"
	"regexp"
	"strings"
	"text/tabwriter"
	"time"
)

var trailing = regexp.MustCompile(` +\n`)

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
	return trailing.ReplaceAllString(b.String(), "\n")
}

// Within is Text aligned right, without the last columns if it is wider than width. hidden
// is how many it leaves out.
func Within(rows [][]string, width int) (text string, hidden int) {
	for n := len(rows[0]); ; n-- {
		text = Text(rows, true)
		if first, _, _ := strings.Cut(text, "\n"); len(first) <= width || n == 1 {
			return text, hidden
		}
		hidden++
		for i := range rows {
			rows[i] = rows[i][:n-1]
		}
	}
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

// Wrap joins the words of each paragraph of s into lines of at most width characters, and
// of at most 80, to be readable. It breaks a word only if it is longer than that. An empty
// line separates paragraphs.
func Wrap(s string, width int) string {
	paragraphs := strings.Split(s, "\n\n")
	for i, p := range paragraphs {
		paragraphs[i] = fold(strings.Join(strings.Fields(p), " "), "", min(max(width, 1), 80))
	}
	return strings.Join(paragraphs, "\n\n")
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
func Commas[N int | int64](n N) string {
	if -1000 < n && n < 1000 {
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%s,%03d", Commas(n/1000), max(n%1000, -(n%1000)))
}

// Digits writes v with about three digits.
func Digits(v float64) string {
	switch {
	case v == 0:
		return "0"
	case v < 0.1:
		return fmt.Sprintf("%.2g", v)
	case v < 10:
		return fmt.Sprintf("%.2f", v)
	case v < 100:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.0f", v)
}

// Percent writes a share with about three digits.
func Percent(share float64) string { return Digits(100*share) + " %" }

// Count writes v with about three digits, in thousands or millions if it is large.
func Count(v float64) string {
	switch {
	case v >= 999_500:
		return Digits(v/1e6) + " M"
	case v >= 1_000:
		return Digits(v/1e3) + " k"
	}
	return Digits(v)
}

// Duration writes d with about three digits.
func Duration(d time.Duration) string {
	if d < time.Microsecond {
		return fmt.Sprintf("%d ns", d)
	}
	v, units := float64(d)/1e3, []string{"µs", "ms", "s"}
	for v >= 1000 && len(units) > 1 {
		v, units = v/1000, units[1:]
	}
	return Digits(v) + " " + units[0]
}
