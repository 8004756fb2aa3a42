package client

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"sync"

	"github.com/sluice-im/sluice/client/internal/durable"
)

// fileVersion is of both files' format; another is refused instead of guessed at.
const fileVersion = 1

// FileQueue is a Queue in one JSON file, which is written anew and made durable at every change: it survives kill -9
// and power loss, at the price of one or two disk syncs a message. Good for a person's chat, not for a bulk sender.
type FileQueue struct {
	path string

	mu      sync.Mutex
	pending []Pending
}

type queueFile struct {
	Version int       `json:"version"`
	Pending []Pending `json:"pending"`
}

// NewFileQueue keeps the queue at path. The directory must exist; the file need not.
func NewFileQueue(path string) *FileQueue { return &FileQueue{path: path} }

// Load reads the file. One that is damaged or of another version is an error: what is in it must not be overwritten.
func (q *FileQueue) Load() ([]Pending, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	var f queueFile
	found, err := readJSON(q.path, &f)
	if err != nil {
		return nil, err
	}
	if found && f.Version != fileVersion {
		return nil, fmt.Errorf("%s has format version %d: only %d is known", q.path, f.Version, fileVersion)
	}
	q.pending = f.Pending
	return append([]Pending(nil), f.Pending...), nil
}

// Save returns once the file is durable with p in it. After an error the queue is as it was before.
func (q *FileQueue) Save(p Pending) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.replace(withPending(slices.Clone(q.pending), p))
}

// Remove returns once the file is durable without the message. After an error the queue is as it was before.
func (q *FileQueue) Remove(uuid string) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	rest, found := withoutPending(slices.Clone(q.pending), uuid)
	if !found {
		return nil
	}
	return q.replace(rest)
}

// Close does nothing: every change is on disk already.
func (q *FileQueue) Close() error { return nil }

func (q *FileQueue) replace(pending []Pending) error {
	if err := writeJSON(q.path, queueFile{Version: fileVersion, Pending: pending}); err != nil {
		return err
	}
	q.pending = pending
	return nil
}

// readJSON reads path into v; a file that is not there leaves v as it is.
func readJSON(path string, v any) (found bool, err error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if err := json.Unmarshal(data, v); err != nil {
		return true, fmt.Errorf("read %s: %w", path, err)
	}
	return true, nil
}

func writeJSON(path string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode %s: %w", path, err)
	}
	if err := durable.Replace(path, data); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}
