package docs_test

import (
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The commands of docs/evidence.md name packages and tests that exist, and the targets are those of the Makefile.
func TestEvidence(t *testing.T) {
	page := documents(t)["docs/evidence.md"]
	makefile, err := os.ReadFile("Makefile")
	require.NoError(t, err)
	tests := 0
	for _, m := range regexp.MustCompile("`(?:make (\\w+)|go test ([^\\s`]+)( -run '?([\\w$]+)'?)?[^`]*)`").FindAllStringSubmatch(page, -1) {
		if m[1] != "" {
			require.Contains(t, string(makefile), "\n"+m[1]+":", m[0])
			continue
		}
		dir := strings.TrimSuffix(m[2], "...")
		require.DirExists(t, dir, m[0])
		if m[4] == "" {
			continue
		}
		tests++
		found := false
		names, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
		require.NoError(t, err)
		for _, name := range names {
			text, err := os.ReadFile(name)
			require.NoError(t, err)
			found = found || strings.Contains(string(text), "\nfunc "+strings.TrimSuffix(m[4], "$")+"(")
		}
		require.True(t, found, "%s: no such test", m[0])
	}
	require.Greater(t, tests, 15)
	for _, m := range regexp.MustCompile("`(Test\\w+)`").FindAllStringSubmatch(page, -1) {
		found := false
		for _, text := range files(t, "_test.go") {
			found = found || strings.Contains(text, "\nfunc "+m[1]+"(")
		}
		require.True(t, found, "no test %s", m[1])
	}
}

// DESIGN.md names types with their methods and fields, and functions with their packages. All exist.
func TestDesignNames(t *testing.T) {
	code, names := files(t, ".go"), 0
	for _, m := range regexp.MustCompile("`([A-Za-z]+)\\.([A-Za-z]+)`").FindAllStringSubmatch(documents(t)["DESIGN.md"], -1) {
		if m[2] == "md" || m[2] == "go" {
			continue
		}
		names++
		method := regexp.MustCompile(`(?m)^func \(\w* ?\*?` + m[1] + `(\[\w+\])?\) ` + m[2] + `\(`)
		body := regexp.MustCompile(`(?ms)^type ` + m[1] + ` struct \{.*?^\}`)
		field := regexp.MustCompile(`(?m)^\t(\w+, )*` + m[2] + `\b`)
		function := regexp.MustCompile(`(?m)^(func ` + m[2] + `\(|(type|const|var) ` + m[2] + `\b|\t` + m[2] + ` += )`)
		found := false
		for name, text := range code {
			found = found || strings.Contains(text, m[2]) && (method.MatchString(text) || field.MatchString(body.FindString(text)) || path.Base(path.Dir(name)) == m[1] && function.MatchString(text))
		}
		assert.True(t, found, "%s: no such name", m[0])
	}
	require.Greater(t, names, 30)
}
