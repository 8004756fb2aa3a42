// Package sluice_test holds the rules of the tree itself: which package may import which, how large files, functions and
// interfaces may get, and where goroutines start. See CONTRIBUTING.md.
package sluice_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"sort"
	"strings"
	"testing"
)

const (
	module            = "github.com/sluice-im/sluice/"
	fileLinesMax      = 400
	functionLinesMax  = 70
	interfaceMethsMax = 5
	mainLinesMax      = 100
)

// mayImport lists, for each directory prefix (the longest match counts), which directories of this module its code may
// import, tests aside. Arrows point down only.
var mayImport = map[string][]string{
	"api":                {"api"},
	"codec":              {"api"},
	"poller":             {"poller"},
	"stateclient":        {"api", "stateclient"},
	"stateclient/routes": {"api"},
	"gateway":            {"api", "codec", "poller", "stateclient", "gateway"},
	"stateserver":        {"api", "stateclient/routes", "stateserver"},
	"client":             {"api", "codec", "client"},
	"web":                {},
	"bench":              {"api", "client", "codec", "poller", "bench"},
	"internal/testenv":   {},
	"internal/devredis":  {},
	"test":               {"api", "client", "codec", "poller", "stateclient", "stateserver", "gateway", "internal", "bench", "test", "web"},
	"cmd":                {"api", "client", "codec", "poller", "stateclient", "stateserver", "gateway", "internal", "bench", "web", "cmd"},
	"examples":           {"api", "examples"},
}

// mayImportForeign names the foreign modules that are confined to some directories; everything else is checked by
// review and by ARCHITECTURE.md's list.
var mayImportForeign = map[string][]string{
	"github.com/gobwas/ws":           {"codec", "client", "bench", "test", "examples"},
	"github.com/cloudwego/netpoll":   {"poller/netpoll", "bench"},
	"golang.org/x/sys/unix":          {"poller", "stateclient", "bench", "test", "cmd", "stateserver/store"},
	"google.golang.org/grpc":         {"api", "stateclient", "gateway", "stateserver", "bench", "test", "cmd", "examples"},
	"github.com/redis/go-redis":      {"stateclient/routes", "gateway", "stateserver", "cmd", "test", "bench"},
	"google.golang.org/protobuf":     {"api", "codec", "client", "stateclient", "gateway", "stateserver", "bench", "test", "cmd", "examples"},
	"github.com/alicebob/miniredis":  {"internal/devredis"},
	"modernc.org/sqlite":             {"stateserver/store"},
	"github.com/go-sql-driver/mysql": {"stateserver/store"},
}

// mayUseEpoll: system calls of readiness stay in one place.
var epoll = regexp.MustCompile(`\b(unix|syscall)\.Epoll`)

type source struct {
	dir, name string
	text      string
	file      *ast.File
	fset      *token.FileSet
}

func (s source) String() string { return path.Join(s.dir, s.name) }

func (s source) test() bool { return strings.HasSuffix(s.name, "_test.go") }

func sources(t *testing.T) []source {
	t.Helper()
	var all []source
	err := filepath.WalkDir(".", func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			name := d.Name()
			if p != "." && (strings.HasPrefix(name, ".") || name == "node_modules" || name == "testdata") {
				return filepath.SkipDir
			}
			if _, err := os.Stat(filepath.Join(p, "go.mod")); p != "." && err == nil {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(p, ".go") || strings.HasSuffix(p, ".pb.go") {
			return nil
		}
		text, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		fset := token.NewFileSet()
		f, err := parser.ParseFile(fset, p, text, parser.ParseComments)
		if err != nil {
			return err
		}
		all = append(all, source{filepath.ToSlash(filepath.Dir(p)), d.Name(), string(text), f, fset})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestArrowsPointDown(t *testing.T) {
	for _, s := range sources(t) {
		for _, imp := range s.file.Imports {
			p := strings.Trim(imp.Path.Value, `"`)
			if own, ok := strings.CutPrefix(p, module); ok && !s.test() && s.dir != "." {
				if !allowed(s.dir, own) {
					t.Errorf("%s imports %s: the table in arch_test.go has no such arrow", s, own)
				}
			}
			for foreign, dirs := range mayImportForeign {
				if (p == foreign || strings.HasPrefix(p, foreign+"/")) && !s.test() && !below(s.dir, dirs) {
					t.Errorf("%s imports %s, which is confined to %v", s, p, dirs)
				}
			}
			if strings.HasSuffix(p, "internal/testenv") && !s.test() && !below(s.dir, []string{"test", "bench", "internal/testenv", "poller/conformance"}) {
				t.Errorf("%s imports testenv outside a test", s)
			}
		}
		if epoll.MatchString(s.text) && !below(s.dir, []string{"poller", "bench"}) && s.dir != "." {
			t.Errorf("%s calls epoll; only poller does (and bench's bare loop)", s)
		}
	}
}

func allowed(dir, imported string) bool {
	var rule []string
	best := -1
	for prefix, r := range mayImport {
		if below(dir, []string{prefix}) && len(prefix) > best {
			best, rule = len(prefix), r
		}
	}
	return best >= 0 && (below(imported, rule) || below(imported, []string{dir}))
}

func below(dir string, prefixes []string) bool {
	for _, p := range prefixes {
		if dir == p || strings.HasPrefix(dir, p+"/") {
			return true
		}
	}
	return false
}

func TestSizes(t *testing.T) {
	for _, s := range sources(t) {
		if n := strings.Count(s.text, "\n"); n > fileLinesMax {
			t.Errorf("%s has %d lines, %d are allowed", s, n, fileLinesMax)
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl:
				lines := s.fset.Position(n.End()).Line - s.fset.Position(n.Pos()).Line + 1
				limit := functionLinesMax
				if n.Name.Name == "main" {
					limit = mainLinesMax
				}
				if lines > limit {
					t.Errorf("%s: %s has %d lines, %d are allowed", s, n.Name.Name, lines, limit)
				}
			case *ast.TypeSpec:
				if i, ok := n.Type.(*ast.InterfaceType); ok && methods(i) > interfaceMethsMax {
					t.Errorf("%s: interface %s has %d methods, %d are allowed", s, n.Name.Name, methods(i), interfaceMethsMax)
				}
			}
			return true
		})
	}
}

// methods counts an interface's own methods: putting small interfaces together is what they are for.
func methods(i *ast.InterfaceType) int {
	n := 0
	for _, f := range i.Methods.List {
		if _, ok := f.Type.(*ast.FuncType); ok {
			n++
		}
	}
	return n
}

// refused are words that stand for unfinished or hidden work.
var refused = regexp.MustCompile(`\b(TODO|FIXME|XXX)\b|//go:norace|//nolint(\s|$)`)

// badNames say nothing.
var badNames = regexp.MustCompile(`^(util|utils|common|base|helper|helpers|misc)$`)

func TestSmells(t *testing.T) {
	for _, s := range sources(t) {
		if s.dir == "." {
			continue
		}
		if m := refused.FindString(s.text); m != "" {
			t.Errorf("%s holds %q", s, m)
		}
		if badNames.MatchString(s.file.Name.Name) {
			t.Errorf("%s: package name %s", s, s.file.Name.Name)
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			f, ok := n.(*ast.FuncDecl)
			if ok && f.Recv == nil && f.Name.Name == "init" {
				t.Errorf("%s has an init function", s)
			}
			return true
		})
	}
}

// starts: a go statement, or a call of a group's Go method.
func starts(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.GoStmt:
		return true
	case *ast.CallExpr:
		sel, ok := n.Fun.(*ast.SelectorExpr)
		return ok && sel.Sel.Name == "Go"
	}
	return false
}

// TestGoroutinesAreListed holds ARCHITECTURE.md's list against the code: every file with a go statement stands in it.
func TestGoroutinesAreListed(t *testing.T) {
	doc, err := os.ReadFile("ARCHITECTURE.md")
	if err != nil {
		t.Fatal(err)
	}
	_, list, ok := strings.Cut(string(doc), "## Goroutines")
	if !ok {
		t.Fatal("ARCHITECTURE.md has no section Goroutines")
	}
	list, _, _ = strings.Cut(list, "\n## ")
	product := []string{"poller", "codec", "stateclient", "gateway", "stateserver", "client"}
	missing := map[string]bool{}
	for _, s := range sources(t) {
		if s.test() || !below(s.dir, product) || below(s.dir, []string{"poller/conformance", "client/clienttest"}) {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			if starts(n) && !strings.Contains(list, s.String()) {
				missing[s.String()] = true
			}
			return true
		})
	}
	var names []string
	for n := range missing {
		names = append(names, n)
	}
	sort.Strings(names)
	for _, n := range names {
		t.Errorf("%s starts a goroutine, but ARCHITECTURE.md's list does not name it", n)
	}
}

// named are paths in backquotes.
var named = regexp.MustCompile("`([a-z]+[a-z/]*/[a-z/]*(?:[a-z]+\\.go)?)`")

// TestDocumentsNameWhatIsThere: a table that leads nowhere is worse than none.
func TestDocumentsNameWhatIsThere(t *testing.T) {
	for _, doc := range []string{"README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"} {
		text, err := os.ReadFile(doc)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range named.FindAllStringSubmatch(string(text), -1) {
			if _, err := os.Stat(m[1]); err != nil && (strings.HasSuffix(m[1], ".go") || strings.HasSuffix(m[1], "/")) {
				t.Errorf("%s names %s, which is not there", doc, m[1])
			}
		}
	}
}
