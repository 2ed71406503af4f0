// Command release plays a release of all modules of this repository. It packs each module
// as the module proxy would pack its tag, into a proxy of files. A fresh module then
// requires all packages that can be imported, and the commands are installed.
//
//	cd .ci/release && GOWORK=off go run .
//
// With -fix it writes go.mod and go.sum as they should be.
//
// It finds faults that go.work hides here: a replace directive, a missing requirement, a
// file that is not part of its module.
package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/module"
	"golang.org/x/mod/zip"
)

// version is the version at which the modules require each other. They are released in
// lockstep, because some share the root's internal packages.
const version = "v0.1.0"

const own = "github.com/go-reservoir/reservoir"

// stays are the modules that are not tagged, because only contributors need them.
var stays = []string{own + "/bench", own + "/proof", own + "/torture"}

// mod is one module of the repository.
type mod struct{ Path, Dir string }

var fix = flag.Bool("fix", false, "write go.mod and go.sum of each module as they should be, and no more")

func main() {
	flag.Parse()
	log.SetFlags(0)
	log.SetPrefix("release: ")
	tmp, err := os.MkdirTemp("", "release")
	if err == nil {
		err = errors.Join(play(tmp), os.RemoveAll(tmp))
	}
	if err != nil {
		log.Fatal(err)
	}
}

func play(tmp string) error {
	rows, err := list(filepath.Join("..", ".."), "-m", "-f", "{{.Path}}\t{{.Dir}}") // what go.work joins
	if err != nil {
		return err
	}
	var mods []mod
	proxy := filepath.Join(tmp, "proxy")
	for _, row := range rows {
		m := mod{Path: row[0], Dir: row[1]}
		if err := publish(proxy, m); err != nil {
			return fmt.Errorf("%s: %w", m.Path, err)
		}
		mods = append(mods, m)
	}
	cache, err := exec.Command("go", "env", "GOMODCACHE", "GOPROXY").Output()
	if err != nil {
		return err
	}
	known, network, _ := strings.Cut(strings.TrimSpace(string(cache)), "\n")
	env := append(os.Environ(), "GOWORK=off", "GOFLAGS=-modcacherw", "GONOSUMDB="+own+",*", "GOTOOLCHAIN=local",
		"GOMODCACHE="+filepath.Join(tmp, "cache"), "GOBIN="+filepath.Join(tmp, "bin"),
		"GOPROXY=file://"+proxy+",file://"+known+"/cache/download,"+network)
	for _, m := range mods {
		if err := tidy(tmp, env, m); err != nil {
			return fmt.Errorf("%s: %w", m.Path, err)
		}
	}
	if *fix {
		return nil
	}
	return consume(tmp, env, mods)
}

// list returns the fields of each line that go list prints.
func list(dir string, args ...string) (rows [][]string, err error) {
	cmd := exec.Command("go", append([]string{"list"}, args...)...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "GOWORK=")
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list in %s: %w", dir, err)
	}
	for line := range strings.Lines(string(out)) {
		rows = append(rows, strings.Split(strings.TrimSpace(line), "\t"))
	}
	return rows, nil
}

// publish puts m into a proxy of files; see https://go.dev/ref/mod#goproxy-protocol.
func publish(proxy string, m mod) error {
	text, err := os.ReadFile(filepath.Join(m.Dir, "go.mod"))
	if err != nil {
		return err
	}
	if err := check(text); err != nil {
		return err
	}
	dir := filepath.Join(proxy, filepath.FromSlash(m.Path), "@v")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for name, content := range map[string]string{
		"list": version + "\n", version + ".mod": string(text),
		version + ".info": fmt.Sprintf(`{"Version":%q,"Time":"2020-01-01T00:00:00Z"}`, version),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			return err
		}
	}
	f, err := os.Create(filepath.Join(dir, version+".zip"))
	if err != nil {
		return err
	}
	defer f.Close()
	return zip.CreateFromDir(f, module.Version{Path: m.Path, Version: version}, m.Dir)
}

// check refuses a go.mod that works only in this repository.
func check(gomod []byte) error {
	f, err := modfile.Parse("go.mod", gomod, nil)
	if err != nil {
		return err
	}
	if len(f.Replace) > 0 {
		return fmt.Errorf("go.mod replaces %s, but builds elsewhere ignore that", f.Replace[0].Old.Path)
	}
	for _, r := range f.Require {
		if strings.HasPrefix(r.Mod.Path, own) && r.Mod.Version != version {
			return fmt.Errorf("go.mod requires %s, but the release will be %s", r.Mod, version)
		}
	}
	return nil
}

// tidy checks that go.mod and go.sum fit the imports of m as published. go.sum may lack
// modules that are not released yet.
func tidy(tmp string, env []string, m mod) error {
	dir := filepath.Join(tmp, "tidy", filepath.Base(m.Dir))
	z := filepath.Join(tmp, "proxy", filepath.FromSlash(m.Path), "@v", version+".zip")
	if err := zip.Unzip(dir, module.Version{Path: m.Path, Version: version}, z); err != nil {
		return err
	}
	if err := run(dir, env, "mod", "tidy"); err != nil {
		return err
	}
	for _, name := range []string{"go.mod", "go.sum"} {
		was, err := os.ReadFile(filepath.Join(m.Dir, name))
		if err != nil {
			return err
		}
		is, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return err
		}
		is = ours.ReplaceAll(is, nil)
		switch {
		case bytes.Equal(ours.ReplaceAll(was, nil), is):
		case *fix:
			if err := os.WriteFile(filepath.Join(m.Dir, name), is, 0o644); err != nil {
				return err
			}
		default:
			return fmt.Errorf("%s is not tidy; it should be\n%s", name, is)
		}
	}
	return nil
}

// ours matches the lines of a go.sum about our own modules. A go.mod has no such lines.
var ours = regexp.MustCompile(`(?m)^` + own + `.*\n`)

// consume requires and builds all libraries in a fresh module, and installs the commands.
func consume(tmp string, env []string, mods []mod) error {
	dir := filepath.Join(tmp, "consumer")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := run(dir, env, "mod", "init", "example.com/consumer"); err != nil {
		return err
	}
	main := "package main\n\n"
	mods = slices.DeleteFunc(mods, func(m mod) bool { return slices.Contains(stays, m.Path) })
	for _, m := range mods {
		libraries, commands, err := packages(m)
		if err != nil {
			return err
		}
		if len(libraries) > 0 {
			if err := run(dir, env, "get", m.Path+"@"+version); err != nil {
				return err
			}
		}
		for _, p := range libraries {
			main += fmt.Sprintf("import _ %q\n", p)
		}
		for _, p := range commands {
			if err := run(dir, env, "install", "-trimpath", p+"@"+version); err != nil {
				return err
			}
			log.Printf("%s@%s installs", p, version)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "main.go"), []byte(main+"\nfunc main() {}\n"), 0o644); err != nil {
		return err
	}
	if err := run(dir, env, "mod", "tidy"); err != nil {
		return err
	}
	if err := run(dir, env, "build", "-trimpath", "-o", os.DevNull, "."); err != nil {
		return err
	}
	log.Printf("%d modules can be required at %s", len(mods), version)
	return nil
}

// packages lists the packages of m that users can import, and its commands.
func packages(m mod) (libraries, commands []string, err error) {
	rows, err := list(m.Dir, "-f", "{{.Name}}\t{{.ImportPath}}\t{{len .GoFiles}}", "./...")
	for _, row := range rows {
		switch path := row[1]; {
		case row[2] == "0" || strings.Contains(path+"/", "/internal/"):
		case row[0] != "main":
			libraries = append(libraries, path)
		case strings.HasPrefix(path, own+"/cmd/"):
			commands = append(commands, path)
		}
	}
	return libraries, commands, err
}

// run runs the go command.
func run(dir string, env []string, args ...string) error {
	cmd := exec.Command("go", args...)
	cmd.Dir, cmd.Env = dir, env
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return nil
}
