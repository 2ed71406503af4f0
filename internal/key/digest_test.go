package key

import (
	"cmp"
	"math"
	"math/bits"
	"reflect"
	"slices"
	"strings"
	"time"
	"unsafe"

	"github.com/go-reservoir/reservoir/backend"
)

// digest is a hash of the world's state: all that is reached from it, by whatever type, but for what does not change or
// does not matter.
func (w *world) digest() uint64 {
	var d digest
	for _, p := range w.procs {
		d.word(uint64(p.env.Counts.Left.Load()))
		d.value(reflect.ValueOf(&p.shard.Breaker).Elem())
	}
	d.value(reflect.ValueOf(w).Elem())
	return d.sum
}

type digest struct {
	sum  uint64
	seen []unsafe.Pointer // the pointers that were followed
}

func (d *digest) word(w uint64) {
	hi, lo := bits.Mul64(d.sum^w^0x9e3779b97f4a7c15, 0xd6e8feb86659fd93)
	d.sum = hi ^ lo ^ bits.RotateLeft64(d.sum, 23)
}

// left out are what all states share, and what is of no account.
var leftOut = map[reflect.Type]bool{
	reflect.TypeFor[*Env](): true, reflect.TypeFor[*node](): true, reflect.TypeFor[*Shard](): true, reflect.TypeFor[*scope](): true, reflect.TypeFor[map[*Key]int64](): true, reflect.TypeFor[map[backend.Window]int64](): true,
	reflect.TypeFor[*time.Timer](): true, reflect.TypeFor[*time.Location](): true, reflect.TypeFor[time.Time](): true,
}

func (d *digest) value(v reflect.Value) {
	switch v.Kind() {
	case reflect.Bool:
		if v.Bool() {
			d.word(1)
		} else {
			d.word(0)
		}
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		d.word(uint64(v.Int()))
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		d.word(v.Uint())
	case reflect.Float64:
		d.word(math.Float64bits(v.Float()))
	case reflect.String:
		for i := range v.Len() {
			d.word(uint64(v.String()[i]))
		}
		d.word(uint64(v.Len()))
	case reflect.Struct:
		t := v.Type()
		switch {
		case leftOut[t]:
		case t.PkgPath() == "sync/atomic" && strings.HasPrefix(t.Name(), "Pointer["):
			d.pointer(t.Field(0).Type.Elem().Elem(), v.Field(2).UnsafePointer())
		default:
			for i := range v.NumField() {
				d.value(v.Field(i))
			}
		}
	case reflect.Pointer:
		if !leftOut[v.Type()] {
			d.pointer(v.Type().Elem(), v.UnsafePointer())
		}
	case reflect.Array, reflect.Slice:
		d.word(uint64(v.Len()))
		for i := range v.Len() {
			d.value(v.Index(i))
		}
	case reflect.Map:
		if leftOut[v.Type()] {
			return
		}
		keys := v.MapKeys()
		slices.SortFunc(keys, func(a, b reflect.Value) int { return cmp.Compare(a.String(), b.String()) })
		d.word(uint64(len(keys)))
		for _, k := range keys {
			d.value(k)
			d.value(v.MapIndex(k))
		}
	case reflect.Chan:
		d.word(uint64(v.Len()))
	}
}

// pointer follows a pointer for the first time, and says which one it is later.
func (d *digest) pointer(to reflect.Type, p unsafe.Pointer) {
	at := slices.Index(d.seen, p)
	if d.word(uint64(at)); p == nil || at >= 0 {
		return
	}
	d.seen = append(d.seen, p)
	d.value(reflect.NewAt(to, p).Elem())
}
