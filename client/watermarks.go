package client

import (
	"fmt"
	"sync"

	"github.com/sluice-im/sluice/client/internal/core"
)

// Marks is how far a user has received everything.
type Marks struct {
	// UID is whose marks these are: they are of no use to anybody else.
	UID string `json:"uid"`
	// SinceMs is the server's time from which the next catching up starts.
	SinceMs int64 `json:"since_ms"`
	// Conversations maps ConvID to the highest Seq up to which OnMessage has returned for everything.
	Conversations map[string]int64 `json:"conversations"`
}

func (m Marks) core() core.Marks {
	return core.Marks{UID: m.UID, SinceMs: m.SinceMs, Conversations: m.Conversations}
}

// Watermarks keeps Marks between runs. It must be safe for concurrent use. Marks that are a little old are harmless:
// what was received after them comes again.
type Watermarks interface {
	// Load returns what was saved last, or zero Marks. It is called once, before anything else.
	Load() (Marks, error)
	// Save replaces the Marks. It is called a few times a second at most.
	Save(m Marks) error
	// Close ends the use, not what was saved.
	Close() error
}

// MemoryWatermarks live as long as the process.
type MemoryWatermarks struct {
	mu    sync.Mutex
	marks Marks
}

// Load returns what an earlier Client left.
func (w *MemoryWatermarks) Load() (Marks, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.marks, nil
}

// Save replaces the marks.
func (w *MemoryWatermarks) Save(m Marks) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.marks = m
	return nil
}

// Close does nothing.
func (w *MemoryWatermarks) Close() error { return nil }

// FileWatermarks are one JSON file, replaced as a whole.
type FileWatermarks struct{ path string }

type marksFile struct {
	Version int `json:"version"`
	Marks
}

// NewFileWatermarks keeps the marks at path. The directory must exist; the file need not.
func NewFileWatermarks(path string) *FileWatermarks { return &FileWatermarks{path: path} }

// Load reads the file; a damaged one is an error.
func (w *FileWatermarks) Load() (Marks, error) {
	var f marksFile
	found, err := readJSON(w.path, &f)
	if err != nil {
		return Marks{}, err
	}
	if found && f.Version != fileVersion {
		return Marks{}, fmt.Errorf("%s has format version %d: only %d is known", w.path, f.Version, fileVersion)
	}
	return f.Marks, nil
}

// Save returns once the file is durable.
func (w *FileWatermarks) Save(m Marks) error {
	return writeJSON(w.path, marksFile{Version: fileVersion, Marks: m})
}

// Close does nothing: every change is on disk already.
func (w *FileWatermarks) Close() error { return nil }
