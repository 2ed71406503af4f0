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
