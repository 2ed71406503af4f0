package main

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestEveryPatchApplies: code moves on, and a mutant that does not fit it any
// more is noticed at once. Each names a test that exists.
func TestEveryPatchApplies(t *testing.T) {
	root, err := filepath.Abs("..")
	require.NoError(t, err)
	mutants, err := load(".", "")
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(mutants), 40)
	numbers := map[string]bool{}
	for _, m := range mutants {
		t.Run(m.name, func(t *testing.T) {
			number, _, _ := strings.Cut(m.name, "-")
			assert.Regexp(t, `^\d{2,3}$`, number)
			assert.False(t, numbers[number], "the number is taken")
			numbers[number] = true
			for _, file := range m.files { // read it, so that go test does not take an old result
				_, err := os.ReadFile(filepath.Join(root, file))
				assert.NoError(t, err)
				assert.False(t, strings.HasSuffix(file, "_test.go"), "a bug in a test")
			}
			out, err := apply(root, m, "--check")
			assert.NoError(t, err, out)
			first, _, _ := strings.Cut(m.test, "/")
			assert.True(t, declared(t, filepath.Join(root, m.pkg), first), "there is no %s in %s", first, m.pkg)
		})
	}
}

// declared reports whether a package has the test.
func declared(t *testing.T, dir, test string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	require.NoError(t, err)
	at := regexp.MustCompile(`(?m)^func ` + test + `\(`)
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		if at.Match(text) {
			return true
		}
	}
	return false
}

func TestHeader(t *testing.T) {
	const diff = "\n--- a/x.go\n+++ b/x.go\n@@ -1,1 +1,1 @@\n-a\n+b\n"
	m, err := parse("Bug: something\n  long\nKilled by: ./p TestX/a -race\n" + diff)
	require.NoError(t, err)
	assert.Equal(t, mutant{bug: "something long", pkg: "./p", test: "TestX/a", race: true, files: []string{"x.go"}}, m)
	assert.Equal(t, "^TestX$/^a$", m.pattern())
	for _, bad := range []string{
		"",
		"Bug: b\nKilled by: . TestX\n", // no diff
		"Killed by: . TestX\n" + diff,
		"Bug: b\n" + diff,
		"Bug: b\nKilled by: .\n" + diff,
		"Bug: b\nKilled by: . TestX -short\n" + diff,
		"Bug: b\nKilled by: github.com/x TestX\n" + diff,
		"Bug: b\nKilled by: . X\n" + diff,
		"Bug: b\nKilled by: . TestX\n\n--- a/x.go\n",
	} {
		_, err := parse(bad)
		assert.Error(t, err, bad)
	}
}

func TestPicked(t *testing.T) {
	assert.True(t, picked("07-x.patch", ""))
	assert.True(t, picked("07-x.patch", "07"))
	assert.True(t, picked("07-x.patch", "03,07-x"))
	assert.False(t, picked("17-x.patch", "03,07"))
}

// TestJudge: only the failure of the test that is named kills.
func TestJudge(t *testing.T) {
	failed := errors.New("exit status 1")
	for _, row := range []struct {
		want verdict
		out  string
		err  error
	}{
		{survived, "ok  \tp\t0.1s\n", nil},
		{killed, "--- FAIL: TestX (0.00s)\n    x_test.go:1: no\nFAIL\n", failed},
		{killed, "--- FAIL: TestX (0.00s)\npanic: deadlock: all goroutines in bubble are blocked\n", failed},
		{unbuilt, "./x.go:1:1: undefined: y\nFAIL\tp [build failed]\n", failed},
		{hung, "panic: test timed out after 2m0s\n\trunning tests:\n\t\tTestX (2m0s)\n", failed},
		{elsehow, "panic: in a goroutine\nFAIL\tp\t0.1s\n", failed},
		{elsehow, "go: not found\n", failed},
	} {
		assert.Equal(t, row.want, judge(row.out, row.err, "TestX/a"), row.out)
	}
}
