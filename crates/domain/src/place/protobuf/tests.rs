use data_encoding::HEXLOWER;
use proptest::prelude::*;

use super::*;

const PROTO: &[u8] = b"application/protobuf";
const GRPC: &[u8] = b"application/grpc";

/// A `Struct` with `{"amount": 5, "to": "alice", "meta": {"a": true, "b": null, "list": [1, "x"]}}`, as processes of
/// Python (protobuf 7.36.2) wrote it.
const STRUCTS: [&str; 4] = [
    "0a130a06616d6f756e7412091100000000000014400a0d0a02746f12071a05616c6963650a380a046d65746112302a2e0a070a0161120220010a1a0a046c697374121232100a0911000000000000f03f0a031a01780a070a016212020800",
    "0a130a06616d6f756e7412091100000000000014400a380a046d65746112302a2e0a1a0a046c697374121232100a0911000000000000f03f0a031a01780a070a0162120208000a070a0161120220010a0d0a02746f12071a05616c696365",
    "0a380a046d65746112302a2e0a070a0161120220010a070a0162120208000a1a0a046c697374121232100a0911000000000000f03f0a031a01780a0d0a02746f12071a05616c6963650a130a06616d6f756e741209110000000000001440",
    "0a0d0a02746f12071a05616c6963650a130a06616d6f756e7412091100000000000014400a380a046d65746112302a2e0a070a0161120220010a1a0a046c697374121232100a0911000000000000f03f0a031a01780a070a016212020800",
];

/// Reads bytes in hexadecimal, with spaces in between.
fn bytes(hex: &str) -> Vec<u8> {
    HEXLOWER.decode(hex.replace(' ', "").as_bytes()).unwrap()
}

fn path(text: &str) -> FieldPath {
    FieldPath::parse(text).unwrap()
}

fn selected(body: &[u8], include: &[&str], exclude: &[&str]) -> Option<Vec<BodyPart>> {
    let paths = |paths: &[&str]| paths.iter().map(|text| path(text)).collect::<Vec<_>>();
    parts(PROTO, body, PlaceSelection { include: &paths(include), exclude: &paths(exclude) })
}

fn all(hex: &str) -> Vec<BodyPart> {
    selected(&bytes(hex), &[], &[]).unwrap()
}

/// The parts, each with its value in hexadecimal.
fn shown(parts: Option<Vec<BodyPart>>) -> Option<Vec<(String, String)>> {
    let show = |part: BodyPart| (part.place, HEXLOWER.encode(&part.value));
    parts.map(|parts| parts.into_iter().map(show).collect())
}

#[test]
fn a_path_is_one_to_eight_field_numbers() {
    for text in ["5", "1.3", "1", "536870911", "18999", "20000", "1.2.3.4.5.6.7.8"] {
        assert_eq!(path(text).to_string(), text);
    }
    for (text, problem) in [
        ("", "is no path of field numbers"),
        ("a", "is no path"),
        ("0", "is no path"),
        ("05", "is no path"),
        ("+5", "is no path"),
        ("1.", "is no path"),
        (".1", "is no path"),
        ("1..2", "is no path"),
        ("-1", "is no path"),
        ("5000000000", "is no path"),
        ("536870912", "names a field over 536870911"),
        ("19000", "names a field of 19000 to 19999"),
        ("1.19999", "names a field of 19000 to 19999"),
        ("1.2.3.4.5.6.7.8.9", "has more than 8 field numbers"),
    ] {
        let found = FieldPath::parse(text).unwrap_err();
        assert!(found.starts_with(problem), "{text}: {found}");
    }
}

#[test]
fn the_media_types_of_protobuf_are_known() {
    for (content_type, is_known) in [
        ("application/grpc", true),
        ("application/grpc+proto", true),
        ("Application/GRPC+Proto ; charset=x", true),
        ("application/proto", true),
        ("application/protobuf;messageType=\"x.Y\"", true),
        ("application/x-protobuf", true),
        ("application/vnd.google.protobuf", true),
        ("application/grpc-web", false),
        ("application/grpc-web+proto", false),
        ("application/grpc+json", false),
        ("application/connect+proto", false),
        ("application/json", false),
        ("", false),
    ] {
        assert_eq!(is_protobuf(content_type.as_bytes()), is_known, "{content_type}");
    }
}

#[test]
fn a_field_is_read_by_its_numbers() {
    let (text, none) = (|text: &str| Ok(Some(text.as_bytes().to_vec())), Ok(None));
    let (several, not_scalar) = (Err(PlaceError::Several), Err(PlaceError::NotScalar));
    for (body, path_text, value) in [
        ("2a03 6b2d31", "5", text("k-1")),
        ("0805 2a03 6b2d31 1001", "5", text("k-1")),
        ("2a00", "5", text("")),
        ("2a03 6b2d31", "4", none.clone()),
        ("", "5", none.clone()),
        ("08 9601", "1", text("150")),
        ("08 96818000", "1", text("150")),
        ("08 ffffffffffffffffff01", "1", text("18446744073709551615")),
        ("0a05 1a03 6b2d31", "1.3", text("k-1")),
        ("0a05 1a03 6b2d31", "1.4", none.clone()),
        ("0a05 1a03 6b2d31", "2.3", none),
        ("0a07 0a05 1a03 6b2d31", "1.1.3", text("k-1")),
        ("2a01 6b 2a01 6b", "5", several.clone()),
        ("2a01 6b 2801", "5", several.clone()),
        ("0a03 1a01 6b 0a00", "1.3", several),
        ("09 0000000000000000", "1", not_scalar.clone()),
        ("0d 00000000", "1", not_scalar),
        ("f8ffffff0f 01", "536870911", text("1")),
        // The field's message is not looked into, and neither is one beside the way.
        ("0a01 ff", "1", Ok(Some(vec![0xff]))),
        ("0a01 ff 1007", "2", text("7")),
    ] {
        assert_eq!(value_at(PROTO, &bytes(body), &path(path_text)), value, "{body} {path_text}");
    }
}

#[test]
fn bytes_that_are_no_message_are_unreadable() {
    for body in [
        "08",                        // no value
        "08 ff",                     // a varint that does not end
        "08 ffffffffffffffffff02",   // a varint of more than 64 bits
        "08 8080808080808080808001", // a varint of eleven bytes
        "0a",                        // no length
        "0a03 6161",                 // a length beyond the end
        "0a ffffffffffffffffff01",   // a length of 64 bits
        "0a 808080808000",           // a length in six bytes
        "09 00000000000000",         // seven bytes of eight
        "0d 000000",                 // three bytes of four
        "00 01",                     // field 0
        "02 00",                     // field 0
        "0b 0c",                     // a group
        "0c",                        // the end of a group
        "0e",                        // wire type 6
        "0f",                        // wire type 7
        "8880808010 01",             // a tag of more than 32 bits
        "888080808000 01",           // a tag in six bytes
        "80",                        // a tag that does not end
    ] {
        assert_eq!(value_at(PROTO, &bytes(body), &path("1")), Err(MALFORMED), "{body}");
        assert_eq!(selected(&bytes(body), &[], &[]), None, "{body}");
        // On the way, and behind it.
        let nested = [&[0x12, bytes(body).len() as u8][..], &bytes(body)].concat();
        assert_eq!(value_at(PROTO, &nested, &path("2.1")), Err(MALFORMED), "{body}");
        assert_eq!(value_at(PROTO, &nested, &path("3")), Ok(None), "{body}");
        assert_eq!(selected(&nested, &[], &["2.1"]), None, "{body}");
        assert!(selected(&nested, &[], &[]).is_some(), "{body}");
    }
    for (body, path_text) in [("0805", "1.1"), ("0d 00000000", "1.1"), ("0a02 0805", "1.1.1")] {
        assert_eq!(value_at(PROTO, &bytes(body), &path(path_text)), Err(MALFORMED), "{body}");
        assert_eq!(selected(&bytes(body), &[path_text], &[]), None, "{body}");
    }
}

#[test]
fn a_call_of_grpc_has_one_uncompressed_message() {
    let framed = bytes("00 00000005 2a03 6b2d31");
    for content_type in [GRPC, b"application/grpc+proto; x=y"] {
        assert_eq!(value_at(content_type, &framed, &path("5")), Ok(Some(b"k-1".to_vec())));
        let no_paths = || PlaceSelection { include: &[], exclude: &[] };
        assert_eq!(parts(content_type, &framed, no_paths()), Some(all("2a03 6b2d31")));
        assert_eq!(parts(content_type, &bytes("00 00000000"), no_paths()), Some(vec![]));
        for body in [
            "",
            "00 000000",
            "01 00000005 2a03 6b2d31",
            "80 00000005 2a03 6b2d31",
            "00 00000004 2a03 6b2d31",
            "00 00000006 2a03 6b2d31",
            "00 00000002 0805 00 00000002 0805",
            "2a03 6b2d31",
        ] {
            assert_eq!(value_at(content_type, &bytes(body), &path("5")), Err(NOT_ONE_FRAME), "{body}");
            assert_eq!(parts(content_type, &bytes(body), no_paths()), None, "{body}");
        }
    }
    assert_eq!(value_at(PROTO, &framed, &path("5")), Err(MALFORMED));
}

#[test]
fn each_message_has_one_list_of_parts_in_all_its_spellings() {
    for same in [
        // Processes of Python.
        &STRUCTS[..],
        // The order of fields, and of those of one number not.
        &["0801 1203 616263 0802", "0801 0802 1203 616263", "1203 616263 0801 0802"],
        // Longer varints in the body's message.
        &["08 01", "08 8100", "8800 01", "88808000 8180808080808080 00"],
        &["0a01 61", "0a 8100 61"],
        // A nested message with a text, and one within it.
        &["0a07 0801 1203 616263", "0a07 1203 616263 0801"],
        &["0a0c 1a03 646566 0a05 0801 1201 61", "0a0c 0a05 0801 1201 61 1a03 646566"],
        // Entries of prost, which leaves out defaults: {"": 1, "a": 0, "b": 2}.
        &["0a02 1001 0a03 0a0161 0a05 0a0162 1002", "0a05 0a0162 1002 0a03 0a0161 0a02 1001"],
        // And {0: "", 1: "a"}.
        &["0a00 0a05 0801 120161", "0a05 0801 120161 0a00"],
        // A map from numbers to numbers, beside another field.
        &["0a04 0801 1002 0a04 0803 1004 1801", "1801 0a04 0803 1004 0a04 0801 1002"],
    ] {
        for other in &same[1..] {
            assert_eq!(all(same[0]), all(other), "{} {other}", same[0]);
        }
    }
}

#[test]
fn messages_that_may_mean_something_else_have_other_parts() {
    for (one, other) in [
        ("0801", "0802"),
        ("0801", "1001"),
        ("0801", "0d 01000000"),
        ("0801", ""),
        ("0800", ""),
        ("0801 0802", "0802 0801"),
        ("0a0161 0a0162", "0a0162 0a0161"),
        ("0a0161 0a0162", "0a026162"),
        ("0d 00000001", "0d 01000000"),
        // A packed list of numbers: 200, 3, 1000, 2.
        ("0a06 c80103 e80702", "0a06 e80702 c80103"),
        // Bytes with a longer varint.
        ("0a03 088100", "0a02 0801"),
        // Two texts whose bytes are fields: field 4 has 32 bytes, field 5 has 33.
        (
            "0a45 2220 6161616161616161616161616161616161616161616161616161616161616161 \
             2a21 626262626262626262626262626262626262626262626262626262626262626262",
            "0a45 2a21 626262626262626262626262626262626262626262626262626262626262626262 \
             2220 6161616161616161616161616161616161616161616161616161616161616161",
        ),
        // Lists of pairs that are no map: a key twice, a default key twice, no entry with both, keys or values of two
        // wire types, a key that is no text, a third field, the value first.
        ("0a04 0801 1002 0a04 0801 1003", "0a04 0801 1003 0a04 0801 1002"),
        ("0a04 0800 1002 0a02 1003", "0a02 1003 0a04 0800 1002"),
        ("0a02 0801 0a02 0802", "0a02 0802 0a02 0801"),
        ("0a04 0801 1002 0a05 0a0161 1002", "0a05 0a0161 1002 0a04 0801 1002"),
        ("0a04 0801 1002 0a05 0802 120161", "0a05 0802 120161 0a04 0801 1002"),
        ("0a05 0a01ff 1002 0a05 0a01fe 1002", "0a05 0a01fe 1002 0a05 0a01ff 1002"),
        ("0a04 0801 1002 0a06 0803 1004 1801", "0a06 0803 1004 1801 0a04 0801 1002"),
        ("0a04 1002 0801 0a04 1004 0803", "0a04 1004 0803 0a04 1002 0801"),
        ("0a04 0801 1002 0a0161", "0a0161 0a04 0801 1002"),
        ("0a04 0801 1002 0a04 0803 1004", "0a04 0801 1004 0a04 0803 1002"),
    ] {
        assert_ne!(all(one), all(other), "{one} {other}");
    }
}

#[test]
fn a_selection_includes_and_excludes_fields_at_any_depth() {
    let part = |place: &str, value: &str| (place.to_owned(), value.replace(' ', ""));
    let body = bytes("0a07 0801 1203 616263 2a03 6b2d31 1801");
    for (include, exclude, expected) in [
        // A group, 0b to 0c, stands for a nested message.
        (&[][..], &["5"][..], vec![part("protobuf:1", "0b 0801 1203616263 0c"), part("protobuf:3", "1801")]),
        (&["3"], &[], vec![part("protobuf:3", "1801")]),
        (&["5", "3"], &["5"], vec![part("protobuf:3", "1801")]),
        (&["1"], &["1.2"], vec![part("protobuf:1", "0b 0801 0c")]),
        (&["1.1"], &[], vec![part("protobuf:1", "0b 0801 0c")]),
        (&["1.1", "1"], &[], vec![part("protobuf:1", "0b 0801 1203616263 0c")]),
        (&["1.1"], &["1.1"], vec![]),
        (&["1.9", "7"], &[], vec![]),
        (&["1"], &["1.1", "1.2"], vec![part("protobuf:1", "0b 0c")]),
        (&[], &["1", "3", "5"], vec![]),
    ] {
        assert_eq!(shown(selected(&body, include, exclude)), Some(expected), "{include:?} {exclude:?}");
    }
    // One that looks like a text is a message where a path leads into it.
    let text = bytes("0a02 4241");
    assert_eq!(shown(selected(&text, &[], &[])), Some(vec![part("protobuf:1", "0a 02 4241")]));
    assert_eq!(selected(&text, &["1.2"], &[]), None, "it is no message");
    let long = bytes(&format!("0a22 2220 {}", "61".repeat(32)));
    assert_eq!(shown(selected(&long, &["1.9"], &[])), Some(vec![]));
    assert_eq!(shown(selected(&long, &[], &["1.4"])), Some(vec![part("protobuf:1", "0b 0c")]));
    // A repeated message keeps its places, and a map its order.
    let list = bytes("0a02 0801 0a02 1001 0a02 0802");
    assert_eq!(shown(selected(&list, &["1.1"], &[])), Some(vec![part("protobuf:1", "0b 0801 0c 0b 0c 0b 0802 0c")]));
    let (one, other) = (bytes("0a04 0801 1002 0a04 0803 1001"), bytes("0a04 0803 1001 0a04 0801 1002"));
    assert_eq!(selected(&one, &[], &["1.1"]), selected(&other, &[], &["1.1"]));
}

#[test]
fn work_and_depth_are_bounded() {
    // Deeper than is looked into: the innermost map counts by its bytes.
    let nested = |inner: &str, depth: usize| {
        let mut body = bytes(inner);
        for _ in 0..depth {
            let mut outer = vec![0x0a];
            write_varint(&mut outer, body.len() as u64);
            outer.extend(&body);
            body = outer;
        }
        selected(&body, &[], &[]).unwrap()
    };
    let maps = ["1204 0801 1002 1204 0803 1004", "1204 0803 1004 1204 0801 1002"];
    assert_eq!(nested(maps[0], DEPTH_MAX), nested(maps[1], DEPTH_MAX));
    assert_ne!(nested(maps[0], DEPTH_MAX + 1), nested(maps[1], DEPTH_MAX + 1));
    nested(maps[0], 20_000);

    // More fields than become parts.
    let fields = |count: u32| {
        let mut body = Vec::new();
        for number in 1..=count {
            write_varint(&mut body, u64::from(number << 3));
            body.push(1);
        }
        selected(&body, &[], &[]).map(|parts| parts.len())
    };
    assert_eq!(fields(4096), Some(4096));
    assert_eq!(fields(4097), None);

    // More fields than are read into memory: a nested message counts by its bytes, and the key is found.
    let repeated = |count: usize| [bytes("1203 616263"), bytes("0801").repeat(count)].concat();
    let reversed = |count: usize| [bytes("0801").repeat(count), bytes("1203 616263")].concat();
    let length = |body: &[u8]| {
        let mut head = vec![0x0a];
        write_varint(&mut head, body.len() as u64);
        [head, body.to_vec()].concat()
    };
    let of = |body: Vec<u8>| selected(&body, &[], &[]);
    assert_eq!(of(repeated(FIELDS_MAX - 1)).unwrap(), of(reversed(FIELDS_MAX - 1)).unwrap());
    assert_eq!(of(repeated(FIELDS_MAX)), None);
    assert_eq!(of(length(&repeated(FIELDS_MAX - 1))).unwrap(), of(length(&reversed(FIELDS_MAX - 1))).unwrap());
    assert_ne!(of(length(&repeated(FIELDS_MAX))).unwrap(), of(length(&reversed(FIELDS_MAX))).unwrap());
    assert_eq!(value_at(PROTO, &repeated(FIELDS_MAX), &path("2")), Ok(Some(b"abc".to_vec())));
}

/// A field's number, and its bytes with the tag.
type FieldBytes = (u32, Vec<u8>);

/// A field with a value that no map and no message looks like: a number, a fixed one, or a text.
fn field() -> impl Strategy<Value = FieldBytes> {
    let number = prop_oneof![1u32..6, 1..=NUMBER_MAX];
    let value = prop_oneof![
        any::<u64>().prop_map(|number| (VARINT, {
            let mut bytes = Vec::new();
            write_varint(&mut bytes, number);
            bytes
        })),
        any::<[u8; 8]>().prop_map(|bytes| (I64, bytes.to_vec())),
        any::<[u8; 4]>().prop_map(|bytes| (I32, bytes.to_vec())),
        "[a-z]{0,9}".prop_map(|text| (LEN, [&[text.len() as u8], text.as_bytes()].concat())),
    ];
    (number, value).prop_map(|(number, (kind, value))| {
        let mut bytes = Vec::new();
        write_varint(&mut bytes, u64::from((number << 3) | kind));
        bytes.extend(value);
        (number, bytes)
    })
}

fn body_of(fields: &[FieldBytes]) -> Vec<u8> {
    fields.iter().flat_map(|(_, bytes)| bytes.clone()).collect()
}

proptest! {
    #[test]
    fn fields_of_different_numbers_have_no_order(
        mut fields in prop::collection::vec(field(), 0..12), places in prop::collection::vec(any::<u16>(), 12),
    ) {
        let parts = selected(&body_of(&fields), &[], &[]);
        prop_assert!(parts.is_some());
        // Those of one number get the same place.
        fields.sort_by_key(|(number, _)| places[(*number % 12) as usize]);
        let mut by_number: Vec<(u32, Vec<FieldBytes>)> = Vec::new();
        for field in fields {
            match by_number.iter_mut().find(|(number, _)| *number == field.0) {
                Some((_, list)) => list.push(field),
                None => by_number.push((field.0, vec![field])),
            }
        }
        let shuffled: Vec<_> = by_number.into_iter().flat_map(|(_, list)| list).collect();
        prop_assert_eq!(selected(&body_of(&shuffled), &[], &[]), parts.clone());
        // Within a message with a text, too.
        let nested = |fields: &[FieldBytes]| {
            let inner = [&body_of(fields)[..], b"\xf2\xff\xff\xff\x0f\x03abc"].concat();
            let mut body = vec![0x0a];
            write_varint(&mut body, inner.len() as u64);
            body.extend(inner);
            selected(&body, &[], &[])
        };
        let mut sorted = shuffled.clone();
        sorted.sort_by_key(|(number, _)| *number);
        prop_assert_eq!(nested(&shuffled), nested(&sorted));
    }

    #[test]
    fn another_byte_of_a_value_makes_other_parts(
        fields in prop::collection::vec(field(), 0..8), text in prop::collection::vec(any::<u8>(), 1..99),
        place in any::<prop::sample::Index>(), bit in 0u8..8,
    ) {
        let with = |text: &[u8]| {
            let mut body = body_of(&fields);
            body.extend([0x3a, text.len() as u8]);
            body.extend(text);
            selected(&body, &[], &[]).unwrap()
        };
        let mut other = text.clone();
        other[place.index(text.len())] ^= 1 << bit;
        prop_assert_ne!(with(&text), with(&other));
    }
}
