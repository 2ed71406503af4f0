package docs_test

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Above a table of measured figures a comment says where they stand: the file in test/results,
// the name of the section there, and the columns. A column that follows another one is named
// by both:
//
//	<!-- peers.txt, global: calls, calls > highest, p99.9 -->
var sourced = regexp.MustCompile(`(?m)^<!-- ([a-z]+\.txt), ([^:]+): (.*) -->\n((?:\|.*\n)+)`)

// Each row of such a table has the figures of the row with the same name, to the digit.
func TestTablesOfResults(t *testing.T) {
	results, seen := files(t, ".txt"), 0
	for page, text := range documents(t) {
		for _, m := range sourced.FindAllStringSubmatch(text, -1) {
			seen++
			header, rows := section(results["test/results/"+m[1]], m[2])
			require.NotEmpty(t, rows, "%s: %s has no section %s", page, m[1], m[2])
			var columns []int
			for name := range strings.SplitSeq(m[3], ", ") {
				first, then, _ := strings.Cut(name, " > ")
				i := slices.Index(header, first)
				require.GreaterOrEqual(t, i, 0, "%s: %s has no column %s", page, m[2], first)
				for then != "" && header[i] != then {
					i++
				}
				columns = append(columns, i)
			}
			for line := range strings.Lines(strings.SplitN(m[4], "\n", 3)[2]) {
				cells := strings.Split(strings.Trim(line, "| \n"), " | ")
				name := strings.Trim(cells[0], "*`")
				i := slices.IndexFunc(rows, func(r []string) bool { return r[0] == name })
				require.GreaterOrEqual(t, i, 0, "%s: %s has no row %s", page, m[2], name)
				var want []string
				for _, c := range columns {
					want = append(want, rows[i][c])
				}
				require.Equal(t, want, cells[1:], "%s: %s: %s", page, m[2], name)
			}
		}
	}
	require.NotZero(t, seen)
}

var gap = regexp.MustCompile(` {3,}`)

// section returns the header and the rows of a table of results. Its title ends with the name
// in brackets, or its header begins with it.
func section(text, name string) (header []string, rows [][]string) {
	lines := strings.Split(text, "\n")
	i := slices.IndexFunc(lines, func(line string) bool {
		return strings.HasSuffix(line, "("+name+")") || strings.HasPrefix(line, name+" ")
	})
	if i < 0 {
		return nil, nil
	}
	if strings.HasSuffix(lines[i], ")") {
		i++
	}
	header = gap.Split(lines[i], -1)
	for _, line := range lines[i+1:] {
		if line == "" {
			break
		}
		rows = append(rows, gap.Split(line, -1))
	}
	return header, rows
}

// README.md and docs/performance.md have the tables that the last measurement wrote for them.
func TestTablesOfCases(t *testing.T) {
	all, cases := documents(t), files(t, "cases.txt")["test/results/cases.txt"]
	for i, page := range []string{"README.md", "docs/performance.md"} {
		require.Contains(t, all[page], "\n\n"+strings.Split(cases, "\n\n")[i]+"\n\n")
	}
}
