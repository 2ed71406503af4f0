package main

import (
	"math"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// percent writes a share with as many decimals as it takes to tell it from none.
func percent(share float64) string {
	p := 100 * share
	decimals := 1
	if p > 0 && p < 1 {
		decimals = min(1-int(math.Floor(math.Log10(p))), 6)
	}
	return strconv.FormatFloat(p, 'f', decimals, 64) + " %"
}

// short writes a duration with three digits or so: 110ns, 1.25ms, 2.5s.
func short(d time.Duration) string {
	unit := time.Nanosecond
	for 1000*unit <= d && unit < time.Second {
		unit *= 1000
	}
	return d.Round(max(unit/100, 1)).String()
}

// quoted is s as it is if a terminal shows it as it is, and in quotes otherwise. A
// byte that is no UTF-8 may be a command to a terminal, as 0x9b is.
func quoted(s string) string {
	if s == "" || !utf8.ValidString(s) || strings.ContainsFunc(s, func(r rune) bool { return r == '"' || r == ' ' || !unicode.IsPrint(r) }) {
		return strconv.Quote(s)
	}
	return s
}
