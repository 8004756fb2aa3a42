// Package durable replaces files so that a crash at any moment leaves the old or the new content, never a part.
package durable

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// Replace writes data beside path, makes it durable, and renames it into place. When it returns without an error the
// new content survives a power loss. Two processes must not replace one path at the same time.
func Replace(path string, data []byte) error {
	if err := writeSynced(path+".tmp", data); err != nil {
		return err
	}
	if err := os.Rename(path+".tmp", path); err != nil {
		return err
	}
	// The rename is in the directory, which has its own life on disk.
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(wrap("sync directory", dir.Sync()), dir.Close())
}

func writeSynced(path string, data []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

func wrap(operation string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", operation, err)
}
