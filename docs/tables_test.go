package docs_test

import (
	"flag"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write the tables of measured figures anew")

// Above a table of measured figures a comment says where they stand in test/results. It names a
// file, a section of it, and columns, where a column that follows another one is named by both:
//
//	<!-- peers.txt, global: calls, calls > highest, p99.9 -->
//
// Or it names a file that begins with whole tables, and the number of one:
//
//	<!-- cases.txt, table 1 -->
var sourced = regexp.MustCompile(`(?m)^<!-- ([a-z]+\.txt), (?:table (\d+)|([^:\n]+): (.*)) -->\n((?:\|.*\n)+)`)

// The tables of all pages have the measured figures, to the digit. After a measurement
//
//	go test ./docs -run=TestTablesOfResults -update
//
// writes them anew. They keep their headers, the order of their rows, and what is bold.
func TestTablesOfResults(t *testing.T) {
	results, seen := files(t, ".txt"), 0
	for page, text := range files(t, ".md") {
		want := sourced.ReplaceAllStringFunc(text, func(found string) string {
			seen++
			m := sourced.FindStringSubmatch(found)
			comment, source := strings.SplitAfter(found, "\n")[0], results["test/results/"+m[1]]
			if m[2] == "" {
				return comment + tableOf(t, source, m[3], strings.Split(m[4], ", "), m[5])
			}
			n, err := strconv.Atoi(m[2])
			require.NoError(t, err)
			return comment + strings.Split(source, "\n\n")[n-1] + "\n"
		})
		if *update && want != text {
			require.NoError(t, os.WriteFile(page, []byte(want), 0o666))
			continue
		}
		require.Equal(t, want, text, page)
	}
	require.NotZero(t, seen)
}

var transcribed = regexp.MustCompile(`(?s)(\n\| tokens per process and window \|[^\n]*\n\|[^\n]*\n)((?:\|[^\n]*\n)+)(.*?\n` + "```" + `console\n)(.*?)\n` + "```" + `\n`)

// The table of docs/choosing.md has the figures of the transcript below it, the calls and the waits
// of its lines. The transcripts themselves are run by TestDocuments.
//
//	go test ./docs -run=TestTranscripts -update
//
// runs those of simulations, and writes them and the table anew.
func TestTranscripts(t *testing.T) {
	const file = "docs/choosing.md"
	page, err := os.ReadFile(file)
	require.NoError(t, err)
	text := string(page)
	if *update {
		s := newStage(t)
		text = fenced.ReplaceAllStringFunc(text, func(block string) string {
			m := fenced.FindStringSubmatch(block)
			if m[1] != "console" || !seeded(m[2]) {
				return block
			}
			return "```console\n" + s.rerun(t, m[2]) + "```"
		})
	}
	seen := 0
	want := transcribed.ReplaceAllStringFunc(text, func(found string) string {
		seen++
		m := transcribed.FindStringSubmatch(found)
		lines := regexp.MustCompile(`(?m)^ +adaptive .*$`).FindAllString(m[4], -1)
		rows := strings.Split(strings.TrimRight(m[2], "\n"), "\n")
		require.Len(t, lines, len(rows))
		table := ""
		for i, row := range rows {
			name, fields := strings.Split(strings.Trim(row, "| "), " | ")[0], strings.Fields(lines[i])
			table += "| " + name + " | " + fields[2] + " | " + fields[4] + " |\n"
		}
		return m[1] + table + m[3] + m[4] + "\n```\n"
	})
	require.Equal(t, 1, seen)
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(want), 0o666))
		return
	}
	require.Equal(t, want, text)
}

// rerun returns a transcript with what its commands print now.
func (s *stage) rerun(t *testing.T, text string) string {
	all := ""
	for _, part := range strings.Split("\n"+text, "\n$ ")[1:] {
		lines := strings.SplitAfter(part, "\n")
		n := 1 + slices.IndexFunc(lines, func(line string) bool { return !strings.HasSuffix(line, "\\\n") })
		command := strings.Join(lines[:n], "")
		all += "$ " + command + withoutTrailing(s.shell(t, ".", strings.ReplaceAll(strings.TrimSuffix(command, "\n"), "\\\n", " ")))
	}
	return all
}

// tableOf returns the table with the figures of a section. A figure and its unit stay on a line.
func tableOf(t *testing.T, source, name string, columns []string, table string) string {
	header, rows := section(source, name)
	require.NotEmpty(t, rows, "no section %s", name)
	lines := strings.SplitAfter(table, "\n")
	text := lines[0] + lines[1]
	for _, line := range lines[2 : len(lines)-1] {
		first := strings.Split(strings.Trim(line, "| \n"), " | ")[0]
		i := slices.IndexFunc(rows, func(r []string) bool { return r[0] == strings.Trim(first, "*") })
		require.GreaterOrEqual(t, i, 0, "%s has no row %s", name, first)
		text += "| " + first
		for _, column := range columns {
			text += " | " + strings.ReplaceAll(rows[i][position(t, header, column)], " ", "\u00a0")
		}
		text += " |\n"
	}
	return text
}

// position returns where a column is, or the one after it that is also named.
func position(t *testing.T, header []string, column string) int {
	first, then, _ := strings.Cut(column, " > ")
	i := slices.Index(header, first)
	require.GreaterOrEqual(t, i, 0, "no column %s", first)
	if then == "" {
		return i
	}
	j := slices.Index(header[i:], then)
	require.GreaterOrEqual(t, j, 0, "no column %s", column)
	return i + j
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
