use proptest::prelude::*;

use super::*;

fn hex(text: &str) -> Vec<u8> {
    data_encoding::HEXLOWER.decode(text.replace(' ', "").as_bytes()).unwrap()
}

fn selected(body: &[u8], include: &[&str], exclude: &[&str]) -> Option<Vec<(String, Vec<u8>)>> {
    let pointers = |texts: &[&str]| texts.iter().map(|text| Pointer::parse(text).unwrap()).collect::<Vec<_>>();
    let (include, exclude) = (pointers(include), pointers(exclude));
    let parts = parts(body, PlaceSelection { include: &include, exclude: &exclude })?;
    Some(parts.into_iter().map(|part| (part.place, part.value)).collect())
}

fn all(body: &[u8]) -> Option<Vec<(String, Vec<u8>)>> {
    selected(body, &[], &[])
}

fn value(body: &str, pointer: &str) -> PlaceValue {
    value_at(&hex(body), &Pointer::parse(pointer).unwrap())
}

#[test]
fn spellings_of_one_value_are_the_same_and_no_others() {
    // Each line is one value in all its spellings; no two lines have the same parts.
    let values: &[&[&str]] = &[
        &[
            "a1 61 61 01",
            "a1 61 61 18 01",
            "a1 61 61 1b 00 00 00 00 00 00 00 01",
            "bf 61 61 01 ff",
            "b8 01 7f 61 61 ff 01",
        ],
        &["d9 d9 f7 a1 61 62 01", "a1 61 62 01"],
        &["d9 d9 f7 d9 d9 f7 a1 61 62 01"],
        &["a1 61 61 f9 3c 00", "a1 61 61 fa 3f 80 00 00", "a1 61 61 fb 3f f0 00 00 00 00 00 00"],
        &["a1 61 61 20", "a1 61 61 38 00"],
        &["a1 61 61 c2 41 01"],
        &["a1 01 01"],
        &["a1 61 31 01"],
        &["a1 41 31 01"],
        &["a1 f5 01"],
        &["a2 61 61 01 61 62 02", "a2 61 62 02 61 61 01", "bf 61 62 02 61 61 01 ff"],
        &["a2 61 61 02 61 62 01"],
        &["82 01 02", "9f 01 02 ff", "98 02 01 02"],
        &["82 02 01"],
        &["81 82 01 02"],
        &["80", "9f ff"],
        &["a0", "bf ff"],
        &["60", "7f ff", "7f 60 ff"],
        &["40", "5f ff"],
        &["62 61 62", "7f 61 61 61 62 ff"],
        &["42 61 62", "5f 41 61 41 62 ff"],
        &["f9 00 00", "fa 00 00 00 00", "fb 00 00 00 00 00 00 00 00"],
        &["f9 80 00", "fa 80 00 00 00"],
        &["f9 00 01", "fa 33 80 00 00", "fb 3e 70 00 00 00 00 00 00"],
        &["f9 03 ff", "fa 38 7f c0 00"],
        &["f9 7b ff", "fa 47 7f e0 00"],
        &["fa 47 7f f0 00", "fb 40 ef fe 00 00 00 00 00"],
        &["f9 7c 00", "fa 7f 80 00 00", "fb 7f f0 00 00 00 00 00 00"],
        &["f9 fc 00", "fb ff f0 00 00 00 00 00 00"],
        &["f9 7e 00", "fa 7f c0 00 00", "fb 7f f8 00 00 00 00 00 00"],
        // A signalling NaN, and payloads that need more bits.
        &["f9 7d 00", "fa 7f a0 00 00", "fb 7f f4 00 00 00 00 00 00"],
        &["fa 7f c0 00 01", "fb 7f f8 00 00 20 00 00 00"],
        &["fb 7f f8 00 00 00 00 00 01"],
        &["fa 00 00 00 01", "fb 36 a0 00 00 00 00 00 00"],
        &["fb 3f b9 99 99 99 99 99 9a"],
        &["fb 00 00 00 00 00 00 00 01"],
        &["f4"],
        &["f6"],
        &["f7"],
        &["f8 20"],
        &["c1 01", "d8 01 01"],
    ];
    let mut seen = Vec::new();
    for spellings in values {
        let first = all(&hex(spellings[0])).unwrap();
        for spelling in *spellings {
            assert_eq!(all(&hex(spelling)).as_ref(), Some(&first), "{spelling}");
        }
        assert!(!seen.contains(&first), "{spellings:?}");
        seen.push(first);
    }
}

#[test]
fn a_map_of_too_many_members_is_one_part() {
    let map = |keys: &mut dyn Iterator<Item = u16>| {
        let members = keys.flat_map(|key| [&[0x19], &key.to_be_bytes()[..], &[0x01]].concat());
        all(&[vec![0xbf], members.collect(), vec![0xff]].concat()).unwrap()
    };
    assert_eq!(map(&mut (0..4096)).len(), 4096);
    let parts = map(&mut (0..4097));
    assert_eq!((parts.len(), parts[0].0.as_str()), (1, "cbor:"));
    assert_eq!(parts, map(&mut (0..4097).rev()));
    assert_ne!(parts, map(&mut (1..4098)));
}

#[test]
fn a_body_that_programs_read_in_different_ways_is_unreadable() {
    let nested = |depth: usize| [vec![0x81; depth], vec![0x01]].concat();
    assert!(all(&nested(128)).is_some());
    let too_deep = [nested(129), [vec![0xc1; 129], vec![0x01]].concat(), vec![0x9f; 100_000]];
    let malformed = [
        ("a2 61 61 01 61 61 02", "a key twice"),
        ("a2 61 61 01 7f 61 61 ff 02", "a key twice in two spellings"),
        ("81 a3 02 01 01 01 18 02 01", "a key twice further in"),
        ("a1 61 61", "no value"),
        ("bf 61 61 ff", "a break for a value"),
        ("ff", "a break alone"),
        ("82 01 ff", "a break in a definite array"),
        ("9f 01", "no break"),
        ("01 01", "a second item"),
        ("d9 d9 f7", "a tag of nothing"),
        ("61 ff", "no UTF-8"),
        ("62 c3", "a short text"),
        ("7f 61 c3 61 a9 ff", "a character in two chunks"),
        ("7f 41 61 ff", "bytes in a text"),
        ("7f 7f 61 61 ff ff", "an indefinite chunk"),
        ("1c", "a reserved length"),
        ("1f", "an indefinite integer"),
        ("df 01", "an indefinite tag"),
        ("f8 1f", "a simple value in two bytes"),
        ("f8 18", "a simple value in two bytes"),
        ("fc", "a reserved float"),
        ("1b 00", "a short integer"),
        ("bb ff ff ff ff ff ff ff ff 01", "more members than there are"),
        ("5b ff ff ff ff ff ff ff ff 01", "more bytes than there are"),
        ("", "nothing"),
    ];
    let bodies = malformed.map(|(body, problem)| (hex(body), problem)).into_iter();
    for (body, problem) in bodies.chain(too_deep.map(|body| (body, "too deep"))) {
        assert_eq!(all(&body), None, "{problem}");
        assert_eq!(value_at(&body, &Pointer::parse("/a").unwrap()), Err(NOT_DETERMINISTIC), "{problem}");
    }
}

#[test]
fn a_value_is_a_text_or_an_integer_of_a_map_or_an_array() {
    for (body, pointer, expected) in [
        ("a1 61 61 63 61 62 63", "/a", Ok(Some("abc"))),
        ("d9 d9 f7 bf 61 61 7f 61 61 62 62 63 ff ff", "/a", Ok(Some("abc"))),
        ("a1 61 61 18 2a", "/a", Ok(Some("42"))),
        ("a1 61 61 1b ff ff ff ff ff ff ff ff", "/a", Ok(Some("18446744073709551615"))),
        ("a1 61 61 3b ff ff ff ff ff ff ff ff", "/a", Ok(Some("-18446744073709551616"))),
        ("a1 61 61 60", "/a", Ok(Some(""))),
        ("a1 61 61 82 01 61 78", "/a/1", Ok(Some("x"))),
        ("a1 63 61 2f 62 61 78", "/a~1b", Ok(Some("x"))),
        ("a1 61 61 82 01 61 78", "/a/01", Ok(None)),
        ("a1 61 61 81 01", "/a/1", Ok(None)),
        ("a1 61 61 81 01", "/*", Ok(None)),
        ("a1 00 61 78", "/0", Ok(None)),
        ("a1 61 30 61 78", "/0", Ok(Some("x"))),
        ("a1 61 62 61 78", "/a", Ok(None)),
        ("01", "/a", Ok(None)),
        ("a1 61 61 41 61", "/a", Err(PlaceError::NotScalar)),
        ("a1 61 61 f9 3c 00", "/a", Err(PlaceError::NotScalar)),
        ("a1 61 61 f5", "/a", Err(PlaceError::NotScalar)),
        ("a1 61 61 f6", "/a", Err(PlaceError::NotScalar)),
        ("a1 61 61 a0", "/a", Err(PlaceError::NotScalar)),
        ("a1 61 61 80", "/a", Err(PlaceError::NotScalar)),
        ("a1 61 61 c0 61 78", "/a", Err(PlaceError::NotScalar)),
    ] {
        assert_eq!(
            value(body, pointer),
            expected.map(|text| text.map(|text| text.as_bytes().to_vec())),
            "{body} {pointer}"
        );
    }
}

#[test]
fn a_selection_keeps_what_it_names_and_its_places() {
    let body = hex("a3 61 61 82 a2 61 78 01 61 79 02 a1 61 78 03 61 62 01 05 02");
    for (include, exclude, expected) in [
        (
            &[][..],
            &[][..],
            &[("cbor:5", "05 02"), ("cbor:/a", "61 61 82 a2 61 78 01 61 79 02 a1 61 78 03"), ("cbor:/b", "61 62 01")][..],
        ),
        (&["/b"], &[], &[("cbor:/b", "61 62 01")]),
        (&["/a/1/x"], &[], &[("cbor:/a", "61 61 82 f6 a1 61 78 03")]),
        (&["/a/0/y"], &[], &[("cbor:/a", "61 61 81 a1 61 79 02")]),
        (&["/a/*/y", "/none"], &[], &[("cbor:/a", "61 61 81 a1 61 79 02")]),
        (&["/none"], &[], &[]),
        (&["/*"], &["/a/*/x", "/b"], &[("cbor:5", "05 02"), ("cbor:/a", "61 61 82 a1 61 79 02 a0")]),
        (&["/a"], &["/a/0"], &[("cbor:/a", "61 61 82 f6 a1 61 78 03")]),
        (&[], &["/*"], &[]),
    ] {
        let expected: Vec<_> = expected.iter().map(|(place, value)| ((*place).to_owned(), hex(value))).collect();
        assert_eq!(selected(&body, include, exclude), Some(expected), "{include:?} {exclude:?}");
    }
    assert_eq!(selected(&hex("82 01 02"), &[], &["/0"]), Some(vec![("cbor:".into(), hex("82 f6 02"))]));
    let key = |key: &str| all(&hex(&format!("a1 {key} 00"))).unwrap().remove(0).0;
    let keys = [("20", "cbor:-1"), ("41 ff", "cbor:h'ff'"), ("f5", "cbor:<<h'f5'>>"), ("63 7e 2f 61", "cbor:/~0~1a")];
    for (bytes, place) in keys {
        assert_eq!(key(bytes), place);
    }
}

#[derive(Clone, Debug)]
enum SampleItem {
    Number(u64),
    Text(String),
    Float(f32),
    Array(Vec<SampleItem>),
    Map(Vec<(String, SampleItem)>),
}

fn items() -> impl Strategy<Value = SampleItem> {
    let leaf = prop_oneof![
        any::<u64>().prop_map(SampleItem::Number),
        (0..300_u64).prop_map(SampleItem::Number),
        ".{0,30}".prop_map(SampleItem::Text),
        any::<f32>().prop_map(SampleItem::Float),
    ];
    leaf.prop_recursive(4, 40, 6, |inner| {
        let map = proptest::collection::btree_map("[a-c]{0,3}", inner.clone(), 0..6);
        prop_oneof![
            proptest::collection::vec(inner, 0..6).prop_map(SampleItem::Array),
            map.prop_map(|members| SampleItem::Map(members.into_iter().collect())),
        ]
    })
}

/// Writes an item in a spelling that `choices` decide.
fn spell(item: &SampleItem, choices: &mut dyn FnMut() -> bool, output: &mut Vec<u8>) {
    let wide = |major: u8, argument: u64| [&[major << 5 | 27][..], &argument.to_be_bytes()].concat();
    let children = |major: u8, count: usize, is_indefinite: bool| match is_indefinite {
        true => vec![major << 5 | 31],
        false => wide(major, count as u64),
    };
    match item {
        SampleItem::Number(number) if choices() => write_head(output, UNSIGNED, *number),
        SampleItem::Number(number) => output.extend(wide(UNSIGNED, *number)),
        SampleItem::Text(text) => {
            if choices() {
                output.extend(wide(TEXT, text.len() as u64));
                output.extend(text.as_bytes());
                return;
            }
            output.push(0x7f);
            for character in text.chars() {
                write_head(output, TEXT, character.len_utf8() as u64);
                output.extend(character.to_string().as_bytes());
            }
            output.push(0xff);
        }
        SampleItem::Float(float) if choices() && !float.is_nan() => {
            output.push(0xfb);
            output.extend(f64::from(*float).to_bits().to_be_bytes());
        }
        SampleItem::Float(float) => {
            output.push(0xfa);
            output.extend(float.to_bits().to_be_bytes());
        }
        SampleItem::Array(elements) => {
            let is_indefinite = choices();
            output.extend(children(ARRAY, elements.len(), is_indefinite));
            elements.iter().for_each(|element| spell(element, choices, output));
            output.extend(is_indefinite.then_some(0xff));
        }
        SampleItem::Map(members) => {
            let is_indefinite = choices();
            output.extend(children(MAP, members.len(), is_indefinite));
            let mut members: Vec<_> = members.iter().collect();
            if choices() {
                members.reverse();
            }
            for (key, value) in members {
                spell(&SampleItem::Text(key.clone()), choices, output);
                spell(value, choices, output);
            }
            output.extend(is_indefinite.then_some(0xff));
        }
    }
}

proptest! {
    #[test]
    fn every_spelling_has_the_same_parts(item in items(), seed in any::<[u64; 2]>()) {
        let spelled = seed.map(|seed| {
            let (mut state, mut output) = (seed | 1, Vec::new());
            let mut choices = || {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                state >> 63 == 1
            };
            spell(&item, &mut choices, &mut output);
            output
        });
        let deterministic = to_deterministic(&spelled[0]).unwrap();
        prop_assert_eq!(all(&spelled[0]), all(&spelled[1]));
        prop_assert!(deterministic.len() <= spelled[0].len());
        prop_assert_eq!(to_deterministic(&deterministic), Some(deterministic));
    }
}
