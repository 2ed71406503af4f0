package search

import (
	"fmt"
	"math/bits"
	"reflect"
	"unsafe"
)

// This file copies and hashes any value, also the fields of other packages, so that what is judged needs no code for it.

// digest is a running hash. Entries of maps that belong to a client, by its name, go to that client's part instead, and
// a client's name counts as the same as another's, so that clients can be exchanged.
type digest struct {
	sum   uint64
	names []string
	parts []uint64
}

//go:norace
func (d *digest) word(w uint64) {
	hi, lo := bits.Mul64(d.sum^w^0x9e3779b97f4a7c15, 0xd6e8feb86659fd93)
	d.sum = hi ^ lo ^ bits.RotateLeft64(d.sum, 23)
}

// owner is which client has that name, or -1.
//
//go:norace
func (d *digest) owner(name string) int {
	for i, n := range d.names {
		if n == name {
			return i
		}
	}
	return -1
}

//go:norace
func (d *digest) text(s string) {
	d.word(uint64(len(s)))
	if d.owner(s) >= 0 {
		return
	}
	for i := range len(s) {
		d.word(uint64(s[i]))
	}
}

// shape is what there is to know of a type: a list of its leaves.
type shape []leaf

type leaf struct {
	kind reflect.Kind // Int64 is any eight bytes, Int8 any byte
	at   uintptr
	typ  reflect.Type // of a pointer, slice or map
	elem shape        // of what it refers to
}

// shapeOf panics for a type that cannot be copied. Types that refer to themselves are none of those.
func shapeOf(t reflect.Type) shape { return appendShape(nil, t, 0) }

func appendShape(s shape, t reflect.Type, at uintptr) shape {
	switch kind := t.Kind(); {
	case kind == reflect.Struct:
		for i := range t.NumField() {
			s = appendShape(s, t.Field(i).Type, at+t.Field(i).Offset)
		}
	case kind == reflect.Array:
		for i := range t.Len() {
			s = appendShape(s, t.Elem(), at+uintptr(i)*t.Elem().Size())
		}
	case kind == reflect.String:
		s = append(s, leaf{kind, at, t, nil})
	case kind == reflect.Pointer || kind == reflect.Slice || kind == reflect.Map:
		s = append(s, leaf{kind, at, t, shapeOf(t.Elem())})
	case kind >= reflect.Bool && kind <= reflect.Float64 && t.Size() == 8:
		s = append(s, leaf{reflect.Int64, at, t, nil})
	case kind >= reflect.Bool && kind <= reflect.Float64 && t.Size() == 1:
		s = append(s, leaf{reflect.Int8, at, t, nil})
	default:
		panic(fmt.Sprint("no shape for ", t))
	}
	return s
}

// part makes what the value at p of that shape, which was copied, refers to its own.
func (s shape) part(p unsafe.Pointer) {
	for i := range s {
		l := &s[i]
		if l.kind == reflect.Int64 || l.kind == reflect.Int8 || l.kind == reflect.String {
			continue
		}
		v := reflect.NewAt(l.typ, unsafe.Add(p, l.at)).Elem()
		if v.IsNil() {
			continue
		}
		switch l.kind {
		case reflect.Pointer:
			to := reflect.New(l.typ.Elem())
			to.Elem().Set(v.Elem())
			l.elem.part(to.UnsafePointer())
			v.Set(to)
		case reflect.Slice:
			to := reflect.MakeSlice(l.typ, v.Len(), v.Len())
			reflect.Copy(to, v)
			for j := range v.Len() {
				l.elem.part(to.Index(j).Addr().UnsafePointer())
			}
			v.Set(to)
		default:
			to, key, elem := reflect.MakeMapWithSize(l.typ, v.Len()), reflect.New(l.typ.Key()).Elem(), reflect.New(l.typ.Elem()).Elem()
			for all := v.MapRange(); all.Next(); {
				key.SetIterKey(all)
				elem.SetIterValue(all)
				l.elem.part(elem.Addr().UnsafePointer())
				to.SetMapIndex(key, elem)
			}
			v.Set(to)
		}
	}
}

// hash adds the value at p of that shape to d.
//
//go:norace
//go:nocheckptr
func (s shape) hash(d *digest, p unsafe.Pointer) {
	for i := range s {
		l := &s[i]
		at := unsafe.Add(p, l.at)
		switch l.kind {
		case reflect.Int64:
			d.word(*(*uint64)(at))
		case reflect.Int8:
			d.word(uint64(*(*uint8)(at)))
		case reflect.String:
			d.text(*(*string)(at))
		case reflect.Pointer:
			to := *(*unsafe.Pointer)(at)
			if to == nil {
				d.word(0)
				continue
			}
			d.word(1)
			l.elem.hash(d, to)
		case reflect.Slice:
			v := reflect.NewAt(l.typ, at).Elem()
			d.word(uint64(v.Len()))
			for j := range v.Len() {
				l.elem.hash(d, v.Index(j).Addr().UnsafePointer())
			}
		default:
			l.hashMap(d, reflect.NewAt(l.typ, at).Elem())
		}
	}
}

// hashMap adds a map, whose keys are strings, in no order.
func (l *leaf) hashMap(d *digest, v reflect.Value) {
	if v.IsNil() {
		d.word(0)
		return
	}
	key, elem := reflect.New(l.typ.Key()).Elem(), reflect.New(l.typ.Elem()).Elem()
	others := uint64(0)
	for all := v.MapRange(); all.Next(); {
		key.SetIterKey(all)
		elem.SetIterValue(all)
		one := digest{names: d.names, parts: d.parts}
		l.elem.hash(&one, elem.Addr().UnsafePointer())
		if owner := d.owner(key.String()); owner >= 0 {
			d.parts[owner] = d.parts[owner]*31 + one.sum + 1
			continue
		}
		one.text(key.String())
		others += one.sum
	}
	d.word(1)
	d.word(others)
}
