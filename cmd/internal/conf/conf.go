// Package conf fills a configuration struct from its defaults, a YAML file, the environment and --set flags, in this
// order, and refuses what it does not know. The structs live with the packages they configure; only the programs read files.
package conf

import (
	"errors"
	"fmt"
	"reflect"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/go-viper/mapstructure/v2"
	"github.com/knadh/koanf/parsers/yaml"
	"github.com/knadh/koanf/providers/confmap"
	"github.com/knadh/koanf/providers/file"
	"github.com/knadh/koanf/v2"
)

// EnvPrefix stands before every environment variable that names a key: SLUICE_LIMITS_CONNECTIONS is
// limits.connections.
const EnvPrefix = "SLUICE_"

const delim = "."

const durationAllowed = "a duration with its unit, such as 300ms or 5s"

// Error is a configuration that cannot be used: nothing has been started, and the program exits with 2.
type Error struct {
	// Key is the dotted path, Value what was given, Allowed what would have been right.
	Key, Value, Allowed string
}

func (e *Error) Error() string {
	return fmt.Sprintf("config: %s: %s is not allowed here; allowed: %s", e.Key, e.Value, e.Allowed)
}

// Sources says where values come from. Later ones win: file, environment, sets.
type Sources struct {
	// File is a YAML file; empty = none.
	File string
	// Environ is os.Environ(). Variables with EnvPrefix that name no key are refused only below a section that exists, so
	// that unrelated variables of the same prefix do no harm.
	Environ []string
	// Sets are key=value, the value in YAML.
	Sets []string
}

// Load fills into, which holds the defaults and points to a struct with koanf tags.
func Load(into any, src Sources) error {
	config := reflect.TypeOf(into).Elem()
	known := keysOf(config, "")
	k := koanf.New(delim)
	if src.File != "" {
		if err := k.Load(file.Provider(src.File), yaml.Parser()); err != nil {
			return fmt.Errorf("config: read %s: %w", src.File, err)
		}
	}
	layers := []func() (map[string]any, error){
		func() (map[string]any, error) { return fromEnviron(src.Environ, known, config) },
		func() (map[string]any, error) { return fromSets(src.Sets, config) },
	}
	for _, layer := range layers {
		values, err := layer()
		if err != nil {
			return err
		}
		if err := k.Load(confmap.Provider(values, delim), nil); err != nil {
			return fmt.Errorf("config: %w", err)
		}
	}
	if err := checkKnown(k, known); err != nil {
		return err
	}
	return decode(k, into)
}

func decode(k *koanf.Koanf, into any) error {
	err := k.UnmarshalWithConf("", into, koanf.UnmarshalConf{DecoderConfig: &mapstructure.DecoderConfig{
		Result:      into,
		TagName:     "koanf",
		ErrorUnused: true,
		// A list in the file replaces the default list; without this its elements would be merged one by one.
		ZeroFields: true,
		DecodeHook: mapstructure.ComposeDecodeHookFunc(duration, whole, mapstructure.TextUnmarshallerHookFunc()),
	}})
	if err == nil {
		return nil
	}
	var bad *mapstructure.DecodeError
	if errors.As(err, &bad) {
		return refusal(bad, k.Raw(), reflect.TypeOf(into).Elem())
	}
	return fmt.Errorf("config: %s", strings.ReplaceAll(err.Error(), "\n", " "))
}

// unusedKeys is how the decoder begins when a map has keys that its struct does not have: those in lists, since all
// others are found by checkKnown. It has no type for it.
const unusedKeys = "has invalid keys: "

// refusal puts what the decoder found into our words: key, value and what is allowed.
func refusal(bad *mapstructure.DecodeError, values map[string]any, config reflect.Type) *Error {
	e := &Error{Key: bad.Name(), Value: fmt.Sprintf("%v", at(values, bad.Name())), Allowed: strings.ReplaceAll(bad.Unwrap().Error(), "\n", " ")}
	want, known := typeAt(config, bad.Name())
	switch {
	case strings.HasPrefix(e.Allowed, unusedKeys) && known && want.Kind() == reflect.Struct:
		key, _, _ := strings.Cut(strings.TrimPrefix(e.Allowed, unusedKeys), ", ")
		inside, _ := at(values, e.Key).(map[string]any)
		e.Value = fmt.Sprintf("%v", inside[key])
		e.Key = strings.TrimPrefix(e.Key+delim+key, delim)
		e.Allowed = "one of the keys " + strings.Join(keysOf(want, ""), ", ")
	case e.Allowed == durationAllowed || !known:
	case want.Kind() == reflect.Slice:
		e.Allowed = "a list, such as [a, b]"
	case want.Kind() == reflect.Struct:
		e.Allowed = "the keys " + strings.Join(keysOf(want, ""), ", ")
	default:
		e.Allowed = "a value of type " + want.String()
	}
	return e
}

// steps cuts a path as the decoder writes it, listeners[0].origins, into listeners, [0], origins.
func steps(path string) []string {
	return strings.FieldsFunc(strings.ReplaceAll(path, "[", delim+"["), func(r rune) bool { return r == '.' })
}

// at is the value at a path; nil when there is none.
func at(v any, path string) any {
	for _, step := range steps(path) {
		switch c := v.(type) {
		case map[string]any:
			v = c[step]
		case []any:
			i, err := strconv.Atoi(strings.Trim(step, "[]"))
			if err != nil || i >= len(c) {
				return nil
			}
			v = c[i]
		default:
			return nil
		}
	}
	return v
}

// typeAt is the type that the configuration has at a path.
func typeAt(t reflect.Type, path string) (at reflect.Type, ok bool) {
	for _, step := range steps(path) {
		switch {
		case strings.HasPrefix(step, "[") && t.Kind() == reflect.Slice:
			t = t.Elem()
		case t.Kind() == reflect.Struct:
			if t, ok = fieldType(t, step); !ok {
				return nil, false
			}
		default:
			return nil, false
		}
	}
	return t, true
}

// fieldType is the type of the field that a key names.
func fieldType(t reflect.Type, key string) (reflect.Type, bool) {
	for i := range t.NumField() {
		f := t.Field(i)
		name, opts, _ := strings.Cut(f.Tag.Get("koanf"), ",")
		if strings.Contains(opts, "squash") {
			if inner, ok := fieldType(f.Type, key); ok {
				return inner, true
			}
		}
		if name == key {
			return f.Type, true
		}
	}
	return nil, false
}

// whole refuses numbers with a fraction, or beyond 64 bits, where a whole one is wanted: the decoder would cut them.
func whole(from, to reflect.Type, data any) (any, error) {
	if from.Kind() == reflect.Float64 && to.Kind() >= reflect.Int && to.Kind() <= reflect.Uint64 {
		return nil, errors.New("a whole number")
	}
	return data, nil
}

// duration takes "30s" and refuses a bare number, which would be nanoseconds.
func duration(from, to reflect.Type, data any) (any, error) {
	if to != reflect.TypeFor[time.Duration]() {
		return data, nil
	}
	s, ok := data.(string)
	if !ok {
		return nil, errors.New(durationAllowed)
	}
	d, err := time.ParseDuration(s)
	if err != nil {
		return nil, errors.New(durationAllowed)
	}
	return d, nil
}

// keysOf lists the dotted leaf keys of a struct type; lists and maps are leaves.
func keysOf(t reflect.Type, prefix string) []string {
	var keys []string
	for i := range t.NumField() {
		f := t.Field(i)
		name, opts, _ := strings.Cut(f.Tag.Get("koanf"), ",")
		if name == "-" || !f.IsExported() {
			continue
		}
		path := prefix
		if !strings.Contains(opts, "squash") {
			path = strings.TrimPrefix(prefix+delim+name, delim)
		}
		if f.Type.Kind() == reflect.Struct {
			keys = append(keys, keysOf(f.Type, path)...)
			continue
		}
		keys = append(keys, path)
	}
	return keys
}

func checkKnown(k *koanf.Koanf, known []string) error {
	for _, key := range k.Keys() {
		if covered(key, known) {
			continue
		}
		return &Error{Key: key, Value: fmt.Sprintf("%v", k.Get(key)), Allowed: "one of the keys " + strings.Join(nearest(key, known), ", ")}
	}
	return nil
}

// covered: the key itself, or one inside a leaf that is a map or list.
func covered(key string, known []string) bool {
	for _, k := range known {
		if key == k || strings.HasPrefix(key, k+delim) {
			return true
		}
	}
	return false
}

// nearest lists the keys of the same section, or the sections when there is no such section.
func nearest(key string, known []string) []string {
	section := key
	for {
		i := strings.LastIndex(section, delim)
		if i < 0 {
			break
		}
		section = section[:i]
		var same []string
		for _, k := range known {
			if strings.HasPrefix(k, section+delim) {
				same = append(same, k)
			}
		}
		if len(same) > 0 {
			return same
		}
	}
	seen := map[string]bool{}
	var sections []string
	for _, k := range known {
		s, _, _ := strings.Cut(k, delim)
		if !seen[s] {
			seen[s] = true
			sections = append(sections, s)
		}
	}
	sort.Strings(sections)
	return sections
}

func fromEnviron(environ, known []string, config reflect.Type) (map[string]any, error) {
	byVar := map[string]string{}
	sections := map[string]bool{}
	for _, key := range known {
		name := EnvPrefix + strings.ToUpper(strings.ReplaceAll(key, delim, "_"))
		byVar[name] = key
		section, _, _ := strings.Cut(key, delim)
		sections[EnvPrefix+strings.ToUpper(section)+"_"] = true
	}
	values := map[string]any{}
	for _, e := range environ {
		name, raw, _ := strings.Cut(e, "=")
		if !strings.HasPrefix(name, EnvPrefix) {
			continue
		}
		key, ok := byVar[name]
		if !ok {
			for s := range sections {
				if strings.HasPrefix(name, s) {
					return nil, &Error{Key: name, Value: raw, Allowed: "a variable whose name is " + EnvPrefix + "SECTION_KEY of a key that exists"}
				}
			}
			continue
		}
		v, err := scalar(config, key, raw)
		if err != nil {
			return nil, err
		}
		values[key] = v
	}
	return values, nil
}

func fromSets(sets []string, config reflect.Type) (map[string]any, error) {
	values := map[string]any{}
	for _, s := range sets {
		key, raw, ok := strings.Cut(s, "=")
		if !ok || key == "" {
			return nil, &Error{Key: "--set", Value: s, Allowed: "key=value"}
		}
		v, err := scalar(config, key, raw)
		if err != nil {
			return nil, err
		}
		values[key] = v
	}
	return values, nil
}

// scalar reads a value as YAML would, so that --set and the environment have the same types as the file. Where a text is
// wanted and it is not in quotes, it is taken as it is: a password of digits is no number, and # begins no comment in it.
func scalar(config reflect.Type, key, raw string) (any, error) {
	if want, known := typeAt(config, key); known && want.Kind() == reflect.String && !strings.HasPrefix(raw, `"`) && !strings.HasPrefix(raw, "'") {
		return raw, nil
	}
	m, err := yaml.Parser().Unmarshal([]byte("v: " + raw))
	if err != nil {
		return nil, &Error{Key: key, Value: raw, Allowed: "a YAML value on one line"}
	}
	if m["v"] == nil {
		return "", nil
	}
	return m["v"], nil
}
