use proptest::prelude::*;

use super::*;

fn selected(body: &[u8], include: &[&str], exclude: &[&str]) -> Option<Vec<(String, Vec<u8>)>> {
    let paths = |texts: &[&str]| texts.iter().map(|text| XmlPath::parse(text).unwrap()).collect::<Vec<_>>();
    let (include, exclude) = (paths(include), paths(exclude));
    let parts = parts(body, PlaceSelection { include: &include, exclude: &exclude })?;
    Some(parts.into_iter().map(|part| (part.place, part.value)).collect())
}

fn all(body: &[u8]) -> Option<Vec<(String, Vec<u8>)>> {
    selected(body, &[], &[])
}

#[test]
fn spellings_of_one_document_are_the_same_and_no_others() {
    // Each line is one document in all its spellings; no two lines have the same parts.
    let documents: &[&[&str]] = &[
        &[
            "<a/>",
            "<a></a >",
            "\u{feff}<a/>",
            "<?xml version=\"1.0\"?>\n<a/>\r\n",
            "<?xml version = '1.0' encoding='utf-8' standalone='yes' ?><a\t\n/>",
            "<?xml version='1.0' encoding='US-ASCII'?><a/>",
            "<!-- 12:00 --><a/><!-- end -->",
        ],
        &["<a b='1' c='2'/>", "<a  c=\"2\"\nb = \"&#49;\"></a>"],
        &["<a b='2' c='1'/>"],
        &["<a b='1'><c>2</c></a>"],
        &["<a>x</a>", "<a><![CDATA[x]]></a>", "<a>&#x78;</a>", "<a><![CDATA[]]>x</a>"],
        &["<a>&lt;&amp;&gt;&quot;&apos;</a>", "<a><![CDATA[<&>\"']]></a>"],
        &["<a> x</a>"],
        &["<a>xy</a>", "<a>x<![CDATA[y]]></a>"],
        &["<a>x<!---->y</a>", "<a>x<!-- z -->y</a>"],
        &["<a><!---->xy</a>"],
        &["<a>x\ny</a>", "<a>x\r\ny</a>", "<a>x\ry</a>", "<a>&#120;\r\ny</a>"],
        &["<a>x&#13;\ny</a>", "<a>x&#13;&#10;y</a>"],
        &["<a b='x y'/>", "<a b='x\ny'/>", "<a b='x\r\ny'/>", "<a b='x\ty'/>"],
        &["<a b='x&#10;y'/>"],
        &["<a><b/><c/></a>"],
        &["<a><c/><b/></a>"],
        &["<a> <b/><c/></a>", "<a>&#32;<b/><c/></a>"],
        &["<a><b/> <c/></a>"],
        &["<a><b><c/></b></a>"],
        &["<a><b>1</b><b>2</b></a>"],
        &["<a><b>2</b><b>1</b></a>"],
        &["<a><b>12</b><b></b></a>", "<a><b>12</b><b/></a>"],
        &["<a><b>1</b></a>"],
        &["<a><b><c>1</c></b><b><c>2</c></b></a>"],
        &["<a><b><c>1</c><c>2</c></b><b/></a>"],
        &["<a><b><c>1</c><c>2</c></b></a>"],
        &["<a>1<b/>2</a>"],
        &["<a>12<b/></a>"],
        &["<a><b/>12</a>"],
        &["<a><?b c?></a>", "<a><?b  c?></a>"],
        &["<a><?b?></a>"],
        &["<?b c?><a/>"],
        &["<a/><?b c?>"],
        &["<a xmlns='u'/>", "<a xmlns=\"&#117;\"/>"],
        &["<p:a xmlns:p='u'/>"],
        &["<a xmlns:p='u'/>"],
        &["<q:a xmlns:q='u'/>"],
        &["<a xmlns:p='u' xmlns:q='v' p:b='1' q:b='2'/>", "<a q:b='2' xmlns:q='v' p:b='1' xmlns:p='u'/>"],
        &["<a xmlns:p='u' xmlns:q='v' p:b='2' q:b='1'/>"],
        &["<a xmlns:p='v' xmlns:q='u' p:b='1' q:b='2'/>"],
        &["<a xmlns='u'><b/></a>", "<a xmlns='u'><b xmlns='u'/></a>"],
        &["<a xmlns='u'><b xmlns=''/></a>"],
        &["<p:a xmlns:p='u' xmlns:q='u'><p:b/></p:a>", "<q:a xmlns:p='u' xmlns:q='u'><p:b/></q:a>"],
        &["<a xmlns:p='u' xmlns:q='v'><p:b/></a>"],
        &["<a xmlns:p='u' xmlns:q='v'><q:b/></a>"],
        &["<p:a xmlns:p='u' xmlns='v'><p:b t='T'/></p:a>"],
        &["<p:a xmlns:p='u' xmlns='v'><p:b xmlns='' t='T'/></p:a>"],
        &["<p:a xmlns:p='u' xmlns='w'><p:b t='T'/></p:a>"],
        &["<a xml:lang='de'/>"],
        &["<a lang='de'/>"],
        &["<A/>"],
        // Both normal forms of one letter.
        &["<a>\u{e9}</a>"],
        &["<a>e\u{301}</a>"],
    ];
    let mut seen = Vec::new();
    for spellings in documents {
        let first = all(spellings[0].as_bytes()).unwrap();
        for spelling in *spellings {
            assert_eq!(all(spelling.as_bytes()).as_ref(), Some(&first), "{spelling:?}");
        }
        assert!(!seen.contains(&first), "{spellings:?}");
        seen.push(first);
    }
}

#[test]
fn a_body_that_programs_read_in_different_ways_is_unreadable() {
    let nested = |depth: usize| format!("{}{}", "<a>".repeat(depth), "</a>".repeat(depth));
    assert!(all(nested(128).as_bytes()).is_some());
    let attributes = |count: usize| (0..count).map(|number| format!(" a{number}=''")).collect::<String>();
    assert!(all(format!("<a{}/>", attributes(256)).as_bytes()).is_some());
    let namespaces = |count: usize| (0..count).map(|number| format!(" xmlns:a{number}='u'")).collect::<String>();
    assert!(all(format!("<a{}/>", namespaces(64)).as_bytes()).is_some());
    let declared = (0..1025).map(|number| format!("<b xmlns='u{number}'/>")).collect::<String>();
    // `xmlns:p` counts with the URI.
    let long = |length: usize| format!("<a xmlns:p='{}'/>", "u".repeat(length - 7));
    assert!(all(long(256).as_bytes()).is_some());
    assert!(all(long(256).replace("uuuu", "&#117;u&amp;&#xe9;").as_bytes()).is_none());
    assert!(all(long(256).replace("uuuu", "&#117;&#x75;&#xe9;").as_bytes()).is_some());
    // In the first two, each element takes about 2,000 comparisons, and in the last two 32,000 and 250.
    let redeclared = |blanks: usize| {
        let elements = format!("<b xmlns:x='u'/>{}", " ".repeat(blanks)).repeat(1000);
        format!("<a{}>{elements}</a>", namespaces(62))
    };
    let rows = |count: usize| format!("<a>{}</a>", format!("<b{}/>", attributes(count)).repeat(300));
    let prefixed = |count: usize| format!("<a xmlns:a='u'>{}</a>", rows(count).replace(" a", " a:a"));
    assert!(all(redeclared(500).as_bytes()).is_some());
    assert!(all(rows(32).as_bytes()).is_some());
    assert!(all(prefixed(32).as_bytes()).is_some());
    let large = [
        nested(129),
        "<a>".repeat(100_000),
        format!("<a{}/>", attributes(257)),
        format!("<a{}><b xmlns:b='u'/></a>", namespaces(64)),
        format!("<a>{declared}</a>"),
        long(257),
        redeclared(400),
        rows(256),
        prefixed(64),
        format!("<a>{}</a>", "<b/>".repeat(1 << 18)),
        format!("<a>{}</a>", "=".repeat((1 << 18) + 1)),
    ];
    let malformed = [
        "",
        " ",
        "x",
        "<a>",
        "</a>",
        "<a></b>",
        "<a/><b/>",
        "x<a/>",
        "<a/>x",
        "<a><b></a></b>",
        "<a",
        "<a b",
        "<a b=",
        "<a b='1",
        "<a b=1/>",
        "<a b='1' b='2'/>",
        "<a b='1'c='2'/>",
        "<a b='<'/>",
        "<a b/>",
        "<1/>",
        "<a 1='1'/>",
        "< a/>",
        "<a>&b;</a>",
        "<a>&</a>",
        "<a>&amp</a>",
        "<a>&#0;</a>",
        "<a>&#xD800;</a>",
        "<a>&#x110000;</a>",
        "<a>&#;</a>",
        "<a>&#x;</a>",
        "<a>&#X41;</a>",
        "<a b='&#xDFFF;'/>",
        "<a>&#99999999999;</a>",
        "<a>\u{1}</a>",
        "<a>\u{ffff}</a>",
        "<a b='\u{8}'/>",
        "<a>]]></a>",
        "<a><!-- -- --></a>",
        "<a><!-- ---></a>",
        "<a><![CDATA[</a>",
        "<a><![cdata[]]></a>",
        "<![CDATA[]]><a/>",
        "&#32;<a/>",
        "<p:a/>",
        "<a p:b='1'/>",
        "<:a/>",
        "<a></:a>",
        "<a :b='1'/>",
        "<p:q:a xmlns:p='u'/>",
        "<a: xmlns:a='u'/>",
        "<a xmlns:p=''/>",
        "<a xmlns:p='u' xmlns:p='v'/>",
        "<a xmlns='u' xmlns='v'/>",
        "<a xmlns:p='u' p:xmlns='v'/>",
        "<a :xmlns='u'/>",
        "<a xmlns:xml='u'/>",
        "<a xmlns:xmlns='u'/>",
        "<a xmlns='http://www.w3.org/XML/1998/namespace'/>",
        "<a xmlns:p='u' xmlns:q='u' p:b='1' q:b='2'/>",
        " <?xml version='1.0'?><a/>",
        "<a><?xml version='1.0'?></a>",
        "<?xml\tversion='1.0'?><?xml version='1.0'?><a/>",
        "<?XML a?><a/>",
        "<a><?b+c?></a>",
        "<a><??></a>",
        "<a><?></a>",
        "<?xml?><a/>",
        "<?xml version='1.1'?><a/>",
        "<?xml encoding='utf-8'?><a/>",
        "<?xml version='1.0'encoding='utf-8'?><a/>",
        "<?xml version='1.0' standalone='no' encoding='utf-8'?><a/>",
        "<?xml version='1.0' standalone='maybe'?><a/>",
        "<?xml version='1.0' x='y'?><a/>",
        "<?xml version='1.0' encoding='iso-8859-1'?><a/>",
        "<?xml version='1.0' encoding='utf-16'?><a/>",
        "<?xml version='1.0' encoding='us-ascii'?><a>\u{e9}</a>",
        "\u{feff}\u{feff}<a/>",
        "<?xml version='1.0'?>\u{feff}<a/>",
        "<!DOCTYPE a><a/>",
        "<!DOCTYPE a [<!ENTITY b 'c'>]><a>&b;</a>",
        "<?xml version='1.0'?><!DOCTYPE a SYSTEM 'file:///etc/passwd'><a/>",
        "<!doctype a><a/>",
        "<a><!DOCTYPE a></a>",
    ];
    let bodies = malformed.iter().map(|text| text.as_bytes().to_vec()).chain(large.map(String::into_bytes));
    let utf16 = "<a/>".encode_utf16().flat_map(u16::to_le_bytes).collect();
    for body in bodies.chain([b"<a>\xff</a>".to_vec(), b"\xff\xfe<\0a\0/\0>\0".to_vec(), utf16]) {
        let shown = String::from_utf8_lossy(&body[..body.len().min(80)]).into_owned();
        assert_eq!(all(&body), None, "{shown}");
        let value = value_at(&body, &XmlPath::parse("/a").unwrap());
        assert!(
            matches!(value, Err(PlaceError::Unreadable(sentence)) if sentence.ends_with('.')),
            "{shown}: {value:?}"
        );
    }
}

#[test]
fn a_value_is_the_text_of_one_element_or_one_attribute() {
    let soap = "<s:Envelope xmlns:s='http://schemas.xmlsoap.org/soap/envelope/' \
                xmlns:w='http://www.w3.org/2005/08/addressing'><s:Header><w:MessageID>\n urn:uuid:1 </w:MessageID></s:Header></s:Envelope>";
    for (body, path, expected) in [
        (soap, "/Envelope/Header/MessageID", Ok(Some("urn:uuid:1"))),
        (soap, "/Envelope/Header/{http://www.w3.org/2005/08/addressing}MessageID", Ok(Some("urn:uuid:1"))),
        (soap, "/Envelope/Header/{}MessageID", Ok(None)),
        (soap, "/Envelope/MessageID", Ok(None)),
        (soap, "/Envelope/Header", Err(PlaceError::NotScalar)),
        ("<a b=' 1 '/>", "/a/@b", Ok(Some(" 1 "))),
        ("<a b='1'/>", "/a/@{}b", Ok(Some("1"))),
        ("<a b='1'/>", "/a/@c", Ok(None)),
        ("<a b='1'/>", "/b/@b", Ok(None)),
        ("<a xmlns:p='u' p:b='1' b='2'/>", "/a/@b", Err(PlaceError::Several)),
        ("<a xmlns:p='u' p:b='1' b='2'/>", "/a/@{u}b", Ok(Some("1"))),
        ("<a xmlns:p='u' p:b='1' b='2'/>", "/a/@{}b", Ok(Some("2"))),
        ("<a><b/><b/></a>", "/a/b", Err(PlaceError::Several)),
        ("<a><b>1</b><b>1</b></a>", "/a/b", Err(PlaceError::Several)),
        ("<a><b><c>1</c></b><b><c>2</c></b></a>", "/a/b/c", Err(PlaceError::Several)),
        ("<a><b>1</b><p:b xmlns:p='u'>2</p:b></a>", "/a/b", Err(PlaceError::Several)),
        ("<a><b>1</b><p:b xmlns:p='u'>2</p:b></a>", "/a/{u}b", Ok(Some("2"))),
        ("<a><b c='1'/><b/></a>", "/a/b/@c", Ok(Some("1"))),
        ("<a>&#49;<![CDATA[2]]></a>", "/a", Ok(Some("12"))),
        ("<a>\u{a0}1</a>", "/a", Ok(Some("\u{a0}1"))),
        ("<a/>", "/a", Ok(Some(""))),
        ("<a/>", "/A", Ok(None)),
        ("<a>1<!-- -->2</a>", "/a", Err(PlaceError::NotScalar)),
        ("<a>1<?b?></a>", "/a", Err(PlaceError::NotScalar)),
    ] {
        let value = value_at(body.as_bytes(), &XmlPath::parse(path).unwrap());
        assert_eq!(value, expected.map(|text| text.map(|text| text.as_bytes().to_vec())), "{body} {path}");
    }
}

#[test]
fn a_path_that_cannot_be_one_is_refused() {
    for (text, problem) in [
        ("", "lacks"),
        ("a", "has no path"),
        ("/", "lacks the name of"),
        ("/a/", "lacks the name of"),
        ("//a", "lacks the name of"),
        ("/@a", "has an attribute without"),
        ("/a/@b/c", "goes on"),
        ("/a/@", "lacks the name of"),
        ("/p:a", "has a prefix, which"),
        ("/{u", "has a `{` without"),
        ("/{u}", "lacks the name of"),
        ("/1a", "has a name that XML does not allow"),
        ("/*", "has a name that XML does not allow"),
        ("/a b", "has a name that XML does not allow"),
        ("/a[1]", "has a name that XML does not allow"),
        (&"/a".repeat(129), "has more than 128"),
    ] {
        let error = XmlPath::parse(text).unwrap_err();
        assert!(error.starts_with(problem), "{text}: {error}");
    }
    for text in ["/Envelope/Header/MessageID", "/{http://a/b}c/@{u}d", "/a-b.c_1", "/\u{e9}t\u{e9}"] {
        assert_eq!(XmlPath::parse(text).unwrap().to_string(), text);
    }
}

#[test]
fn parts_are_named_by_the_way_to_them() {
    let body = b"<p:a xmlns:p='u' id='7'><b>1</b><b>2</b><c><d> </d></c></p:a>";
    let places: Vec<_> = all(body).unwrap().into_iter().map(|(place, _)| place).collect();
    assert_eq!(places, ["xml:", "xml:/a/@id", "xml:/a/b", "xml:/a/c/d"]);
    let long = format!("<{0}>1</{0}>", "a".repeat(300));
    assert_eq!(all(long.as_bytes()).unwrap().len(), 1);
    assert_ne!(all(long.as_bytes()), all(long.replace('1', "2").as_bytes()));
}

#[test]
fn a_value_of_a_path_beyond_the_last_part_counts_in_the_form() {
    let body = |last: usize| {
        format!("<a>{}</a>", (0..=last).map(|number| format!("<b{number}>1</b{number}>")).collect::<String>())
    };
    let paths = |last: usize| all(body(last).as_bytes()).unwrap();
    assert_eq!((paths(4094).len(), paths(4095).len(), paths(5000).len()), (4096, 4097, 4097));
    let changed = body(5000).replace("<b5000>1", "<b5000>2");
    let differing = paths(5000).into_iter().zip(all(changed.as_bytes()).unwrap()).filter(|(one, other)| one != other);
    assert_eq!(differing.map(|((place, _), _)| place).collect::<Vec<_>>(), ["xml:"]);
    // A path that has a part keeps it.
    let again = body(5000).replace("</a>", "<b0>2</b0></a>");
    assert_ne!(all(again.as_bytes()).unwrap()[1], paths(5000)[1]);
}

#[test]
fn a_long_namespace_is_in_the_form_once() {
    let uri = "u".repeat(249);
    let form = |selection: &[&str], body: &str| selected(body.as_bytes(), selection, &[]).unwrap().remove(0).1.len();
    let elements = format!("<p:b xmlns:x='u'/>{}<c p:d=''/>", "<p:b p:k=''/>".repeat(1000));
    let body = format!("<p:a xmlns:p='{uri}' xmlns:{}='u'>{elements}</p:a>", &uri[1..]);
    assert!(form(&[], &body) < 60 * 1000, "{}", form(&[], &body));
    assert!(form(&["/a/b", "/a/c/@d"], &body) < 60 * 1000, "{}", form(&["/a/b", "/a/c/@d"], &body));
}

#[test]
fn namespaces_of_included_elements_count_and_no_others() {
    let of = |body: &str| selected(body.as_bytes(), &["/o/l", "/o/m/@k"], &[]).unwrap();
    let spellings: &[&[&str]] = &[
        &[
            "<o xmlns:p='u' xmlns:q='v'><l/><p:l/><m k=''/></o>",
            "<o xmlns:q='v' xmlns:p='u'><q:m/><l/><q:n/><p:l/><m k=''/></o>",
            "<o xmlns:p='u' xmlns:q='v'><n xmlns='w'><l/></n><l/><m/><p:l/><m k=''/></o>",
            "<o><l xmlns:p='u' xmlns:q='v'/><p:l xmlns:q='v' xmlns:p='u'/><m xmlns:p='u' xmlns:q='v' k=''/></o>",
        ],
        &["<o xmlns:p='u'><l/><p:l/><m k=''/></o>"],
        &["<o xmlns:p='u' xmlns:q='v'><l/><q:l/><m k=''/></o>"],
        &["<o xmlns:p='u'><l xmlns:q='v'/><p:l xmlns:q='v'/><m k=''/></o>"],
        &["<o xmlns:p='u'><l xmlns:q='v'/><p:l/><m xmlns:q='v' k=''/></o>"],
        &["<o xmlns:p='u'><l/><p:l xmlns:q='v'/><m xmlns:q='v' k=''/></o>"],
        &["<o xmlns:p='u'><l xmlns:q='v'/><p:l xmlns:q='w'/><m xmlns:q='v' k=''/></o>"],
        &["<o xmlns:p='u'><l xmlns='v'/><p:l/><m xmlns='v' k=''/></o>"],
        &["<o><l xmlns:p='u' xmlns:q='v' xmlns:r='w'/><l xmlns:p='u' xmlns:q='x' xmlns:r='w'/></o>"],
        &["<o><l xmlns:p='u' xmlns:q='v' xmlns:r='w'/><l xmlns:p='u' xmlns:q='y' xmlns:r='w'/></o>"],
        &["<o xmlns:p='u'><l xmlns='v'/><p:l xmlns='v'/><m xmlns='v' k=''/></o>"],
    ];
    for (number, same) in spellings.iter().enumerate() {
        for body in *same {
            let differing = spellings.iter().enumerate().filter(|(_, other)| of(other[0]) == of(body));
            assert_eq!(differing.map(|(other, _)| other).collect::<Vec<_>>(), [number], "{body}");
        }
    }
}

#[test]
fn a_selection_decides_which_differences_count() {
    let order = "<o n='1'><l><id>7</id><at>12:00</at></l><l><id>8</id><at>12:01</at></l><note/></o>";
    let same = |include: &[&str], exclude: &[&str], other: &str| {
        selected(order.as_bytes(), include, exclude).unwrap() == selected(other.as_bytes(), include, exclude).unwrap()
    };
    let (at, id) = (order.replace("12:00", "13:00"), order.replace('8', "9"));
    let (number, note) = (order.replace("n='1'", "n='2'"), order.replace("<note/>", "<note>x</note><?p?>"));
    let (less, untimed) = (order.replace("<l><id>7</id><at>12:00</at></l>", ""), order.replace("<at>12:00</at>", ""));
    for (include, exclude, equal, different) in [
        (&[][..], &["/o/l/at"][..], &[&at, &untimed][..], &[&id, &number, &note, &less][..]),
        (&[], &["/o/@n"], &[&number], &[&at, &id, &note]),
        (&[], &["/o/{}note"], &[], &[&at, &id, &number, &note]),
        (&["/o/l/id"], &[], &[&at, &number, &note, &untimed], &[&id, &less]),
        (&["/o/l"], &["/o/l/at"], &[&at, &number, &note, &untimed], &[&id, &less]),
        (&["/o/@n"], &[], &[&at, &id, &note, &less], &[&number]),
        (&["/o/none"], &[], &[&at, &id, &number, &note, &less], &[]),
        (&["/o"], &["/o"], &[&at, &id, &number, &note, &less], &[]),
    ] {
        for other in equal {
            assert!(same(include, exclude, other), "{include:?} {exclude:?} {other}");
        }
        for other in different {
            assert!(!same(include, exclude, other), "{include:?} {exclude:?} {other}");
        }
    }
    // The meaning of a value that is included depends on declarations around it.
    let typed = |uri: &str| format!("<o xmlns:p='{uri}'><l><t k='p:T'/></l></o>");
    for include in ["/o/l/t", "/o/l/t/@k"] {
        assert_ne!(selected(typed("u").as_bytes(), &[include], &[]), selected(typed("v").as_bytes(), &[include], &[]));
    }
}

#[derive(Clone, Debug)]
struct SampleElement {
    name: String,
    attributes: Vec<(String, String)>,
    text: String,
    children: Vec<SampleElement>,
}

fn trees() -> impl Strategy<Value = SampleElement> {
    let element =
        ("[a-c]{1,3}", proptest::collection::btree_map("[a-d]", "[ -~\u{e9}\n]{0,8}", 0..4), "[ -~\u{e9}\n]{0,8}");
    let leaf = element.prop_map(|(name, attributes, text)| SampleElement {
        name,
        attributes: attributes.into_iter().collect(),
        text,
        children: Vec::new(),
    });
    leaf.clone().prop_recursive(4, 30, 4, move |inner| {
        (leaf.clone(), proptest::collection::vec(inner, 0..4))
            .prop_map(|(tree, children)| SampleElement { children, ..tree })
    })
}

fn spell(tree: &SampleElement, is_plain: bool, output: &mut String) {
    let escape = |text: &str| text.chars().map(|character| format!("&#{};", u32::from(character))).collect::<String>();
    let entities =
        |text: &str| text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;");
    output.push('<');
    output.push_str(&tree.name);
    let mut attributes: Vec<_> = tree.attributes.iter().collect();
    if !is_plain {
        attributes.reverse();
    }
    for (name, value) in attributes {
        output.push_str(&match is_plain {
            true => format!(" {name}=\"{}\"", entities(value).replace('\n', "&#xa;")),
            false => format!("\r\n {name} = '{}'", escape(value)),
        });
    }
    output.push('>');
    output.push_str(&if is_plain { entities(&tree.text) } else { escape(&tree.text) });
    tree.children.iter().for_each(|child| spell(child, is_plain, output));
    output.push_str(&format!("</{}{}>", tree.name, if is_plain { "" } else { "\t" }));
}

proptest! {
    #[test]
    fn every_spelling_has_the_same_parts(tree in trees(), mut other in trees(), is_changed in any::<bool>()) {
        let spelled = |tree: &SampleElement, is_plain| {
            let mut output = String::new();
            spell(tree, is_plain, &mut output);
            output
        };
        let parts = all(spelled(&tree, true).as_bytes());
        prop_assert!(parts.is_some());
        prop_assert_eq!(&parts, &all(spelled(&tree, false).as_bytes()));
        if is_changed {
            other = SampleElement { children: vec![other], ..tree.clone() };
        }
        let is_same = spelled(&tree, true) == spelled(&other, true);
        prop_assert_eq!(parts == all(spelled(&other, true).as_bytes()), is_same);
    }
}
