"""Bodies that are as dear to read, or as deep, as 1 MiB can be, in the formats other than JSON in which a key can be.

When a reader gets another limit, the body that is dearest within it belongs here, and the row's figures show what it takes.
"""

MIB = 1 << 20
# As long as a namespace may be, its declaration counted with it: 60 times an element of 4 bytes.
NAMESPACE_LENGTH = 256 - len("xmlns:x")
# Dashes nearly are it at each byte.
BOUNDARY = b"-" * 69 + b"x"


def fill(start, piece, end, size=MIB):
    """As many pieces as a body of this size has room for; `piece` may make each from its number."""
    if not callable(piece):
        return start + piece * ((size - len(start) - len(end)) // len(piece)) + end
    pieces, left, number = [], size - len(start) - len(end), 0
    while left >= len(one := piece(number)):
        pieces.append(one)
        left, number = left - len(one), number + 1
    return start + b"".join(pieces) + end


def varint(number):
    out = b""
    while number >= 0x80:
        out, number = out + bytes([number & 0x7f | 0x80]), number >> 7
    return out + bytes([number])


def field(number, content):
    """A field of protobuf that has bytes."""
    return varint(number << 3 | 2) + varint(len(content)) + content


def nest(levels, wrap, content):
    for level in range(levels):
        content = wrap(content, level)
    return content


def xml_bodies():
    start, end, long = b'<a k="k">', b"</a>", b"l" * 220
    names = [b"%c%c" % (97 + number // 26, 97 + number % 26) for number in range(250)]
    uri = b"u" * NAMESPACE_LENGTH

    def attributes(count, prefix=b""):
        return b"".join(b' %s%s=""' % (prefix, name) for name in names[:count])

    def declared(count, length=2):
        """A start tag with namespaces whose prefixes differ in their last letters."""
        return b"<a k='k'" + b"".join(b" xmlns:%s='u'" % name.rjust(length, b"p") for name in names[:count]) + b">"

    laughs = b"".join(b'<!ENTITY e%d "%s">' % (number + 1, b"&e%d;" % number * 10) for number in range(9))
    dtd = b'<!DOCTYPE a [<!ENTITY e0 "ha"><!ENTITY x SYSTEM "file:///etc/passwd">' + laughs + b"]>" + start
    large = "more attributes"
    return {
        "deep": ("deeper than 128", fill(start, b"<a>", b"")),
        "entities": ("document type", fill(dtd, b"&e9;&x;", end)),
        "one element's attributes": (large, fill(b'<a k="k"', lambda number: b' a%d=""' % number, b"/>")),
        "attributes": (large, fill(start, b"<b%s/>" % attributes(250), end)),
        "declarations": (large, fill(declared(62), b"<b xmlns:x='u'/>", end)),
        "namespaces in scope": (large, fill(declared(62), b"<b/>", end)),
        "long namespace": (large, fill(b"<a k='k' xmlns='%suuu'>" % uri, b"<b/>", end)),
        "nodes": (201, fill(b"<a k='k' xmlns='%s'>" % uri[2:], b"<b/>", end)),
        "references": (201, fill(start, b"&#65;", end)),
        # Those below take nearly as many comparisons as a document may. Each of these attributes has a long path of its own.
        "paths": (201, fill(start + b"<%s>" % long, lambda number: b"<b%d%s/>" % (number, attributes(45)), b"</%s>" % long + end)),
        "prefixed attributes": (201, fill(b"<a k='k' xmlns:x='%s'>" % uri, b"<b" + attributes(31, b"x:") + b"/>", end)),
        "lookups": (201, fill(declared(16), b"<b/>", end)),
        "few namespaces and a declaration": (201, fill(declared(9), b"<b xmlns:x='u'/>", end)),
        "many namespaces and a declaration": (201, fill(declared(62, 240), b"<b xmlns:x='u'>" + b"t" * 510 + b"</b>", end)),
        "two namespaces": (201, fill(b"<a k='k' xmlns:x='%s' xmlns:y='%s'>" % (uri, uri[1:] + b"v"), b"<x:b/><y:b/>", end)),
    }


def cbor_bodies():
    def map_of(content):
        """A map whose members are out of order."""
        return b"\xbf\x61x" + content + b"\x61kak\xff"

    def disorder(content, _level):
        return b"\xbf\x01" + content + b"\x00\x00\xff"

    def member(number):
        return b"\x1a" + (MIB - number).to_bytes(4, "big") + b"\0"

    unread = "not CBOR"
    return {
        "deep": (unread, fill(b"", b"\x81", b"\0")),
        "deep without lengths": (unread, fill(b"", b"\x9f", b"")),
        "deep tags": (unread, fill(b"", b"\xc1", b"\0")),
        "a length of 2^63": (unread, fill(b"\xbf\x61kak\x61x\x9b\x80" + b"\0" * 7, b"\0", b"")),
        "bytes of 2^63": (unread, fill(b"\xbf\x61kak\x61x\x5b\x80" + b"\0" * 7, b"\0", b"")),
        "pieces": (201, map_of(fill(b"\x7f", b"\x60", b"\xff", MIB - 8))),
        "members": (201, fill(b"\xbf\x61kak", member, b"\xff")),
        "members of a member": (201, map_of(fill(b"\xbf", member, b"\xff", MIB - 8))),
        "nested disorder": (201, map_of(nest(126, disorder, b"\x5a" + (MIB - 1024).to_bytes(4, "big") + b"x" * (MIB - 1024)))),
    }


def protobuf_bodies():
    def as_text(make, content):
        """Adds to the content until all is UTF-8: the lengths too."""
        candidates = (field(2, make(content, b"a" * number)) for number in range(3, 120))
        return next(one for one in candidates if is_text(one[:4]))

    def message(content, _level):
        return as_text(lambda content, more: content + field(3, more), content)

    def entry(content, _level):
        """A map of two entries: the key of the first is the content."""
        first = as_text(lambda content, more: field(1, content) + field(2, more), content)
        return message(first + field(2, field(1, b"") + field(2, b"aaa")), 0)

    def is_text(start):
        try:
            start.decode()
            return True
        except UnicodeDecodeError:
            return False

    text = "\u0100".encode() * 499_815
    key = field(1, b"k")
    deep = b""
    while len(deep) < MIB - 16:
        deep = field(2, deep)
    return {
        "deep": (201, key + deep),
        "fields": (201, fill(key, b"\x10\0", b"")),
        "numbers": (201, fill(key, lambda number: varint((number + 2) << 3) + b"\0", b"")),
        "messages": (201, fill(key, field(2, field(2, b"\x08\x01")), b"")),
        "entries": (201, fill(key, lambda number: field(3, b"\x08" + varint(MIB - number) + b"\x10\0"), b"")),
        "nested texts": (201, key + nest(30, message, text)),
        "nested entries": (201, key + nest(10, entry, text)),
    }


def multipart_bodies():
    def part(name, content, head=b""):
        return b'\r\nContent-Disposition: form-data; name="%s"\r\n%s\r\n%s\r\n--%s' % (name, head, content, BOUNDARY)

    def within(content, level):
        inner = b"%070d" % level
        return b"Content-Type: multipart/mixed; boundary=%s\r\n\r\n--%s\r\n%s\r\n--%s--" % (inner, inner, content, inner)

    start, end = b"--" + BOUNDARY + part(b"k", b"k"), b"--\r\n"
    nested_head, nested = nest(3_900, within, b"\r\n").split(b"\r\n\r\n", 1)
    return {
        "deep": (201, start + part(b"x", nested, nested_head + b"\r\n") + end),
        "parts": ("programs may find other parts", fill(start, part(b"x", b""), end)),
        "long names": (201, start + b"".join(part(b"n" * 800 + b"%04d" % (1023 - number), b"") for number in range(1_022)) + end),
        "nearly boundaries": (201, start + part(b"x", b"-" * (MIB - 1024)) + end),
        "head fields": (201, start + part(b"x", b"", b"a:\r\n" * (MIB // 4 - 256)) + end),
        "parameters": (201, start + part(b'x"' + b";a=" * (MIB // 3 - 256) + b';b="', b"") + end),
    }


# By the name: the key's place, the media type, and the bodies, each with the answer that it must get: 201, or 400 with these words in
# the reason.
FORMATS = {
    "xml": ("xml:/a/@k", "application/xml", xml_bodies),
    "cbor": ("cbor:/k", "application/cbor", cbor_bodies),
    "protobuf": ("protobuf:1", "application/x-protobuf", protobuf_bodies),
    "multipart": ("form:k", "multipart/form-data; boundary=" + BOUNDARY.decode(), multipart_bodies),
}
