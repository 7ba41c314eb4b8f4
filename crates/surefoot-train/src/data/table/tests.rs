//! Tables that are right, and what is wrong with others.

use super::*;
use proptest::prelude::*;

fn parse(text: &str, label: Option<&str>) -> Result<Table, DataError> {
    let options = TableOptions { label, ..TableOptions::default() };
    Table::parse(Path::new("t.csv"), text.as_bytes(), options)
}

fn labels(table: &Table) -> Vec<Label> {
    let label = |at| match table.read(at) {
        Ok(Sample::Dense { label, .. }) => label,
        other => panic!("{other:?}"),
    };
    (0..table.len()).map(label).collect()
}

#[test]
fn a_heading_is_recognised_and_names_the_label() {
    let table = parse("kind,a,b\ncat,1,2\ndog,3,4\n", Some("kind")).unwrap();
    assert_eq!(table.classes(), ["cat", "dog"]);
    let expected = Sample::Dense { values: vec![3.0, 4.0], label: Label::Class(1) };
    assert_eq!(table.read(1).unwrap(), expected);
    assert_eq!((table.columns(), table.label()), (&["a".to_owned(), "b".to_owned()][..], "kind"));
    let without = parse("1,2,10\n3,4,9\n", None).unwrap();
    assert_eq!(without.classes(), ["9", "10"]);
    assert_eq!(without.len(), 2);
}

#[test]
fn fields_may_be_quoted() {
    let table = parse("a,b,kind\n1,2,\"x, y\"\n\"3\",4,\"say \"\"z\"\"\"\n", None).unwrap();
    assert_eq!(table.classes(), ["say \"z\"", "x, y"]);
}

#[test]
fn a_bad_line_is_one_bad_sample_with_its_line() {
    let table = parse("a,b,c\n1,2,x\n1,oops,y\n1,y\n3,4,z\n", None).unwrap();
    assert_eq!(table.name(1), "line 3 of t.csv");
    assert_eq!(table.read(1).unwrap_err(), "its b is 'oops', which is not a number");
    assert!(table.read(2).unwrap_err().contains("2 fields"));
    assert!(parse("a,b\n1,2\n3,4\n", Some("z")).unwrap_err().hint.is_some());
}

#[test]
fn lines_are_counted_in_files_of_any_system() {
    let text = "a,b,c\n1,2,x\n\n1,\"oops\nno\",y\n1,bad,y\n3,4,z\n";
    for text in [text.to_owned(), text.replace('\n', "\r\n")] {
        let table = parse(&text, None).unwrap();
        let names: Vec<String> = (0..4).map(|at| table.name(at)).collect();
        assert_eq!(
            names,
            ["line 2 of t.csv", "line 4 of t.csv", "line 6 of t.csv", "line 7 of t.csv"]
        );
    }
}

#[test]
fn an_empty_label_is_a_bad_line_and_no_class() {
    let table = parse("a,kind\n1,x\n2,\n3,y\n", None).unwrap();
    assert_eq!(table.classes(), ["x", "y"]);
    assert_eq!(table.read(1).unwrap_err(), "its label (kind) is empty");
}

#[test]
fn a_column_of_text_is_named_and_can_be_ignored() {
    let text = "colour,a,kind\nred,1,x\ngreen,2,y\nred,3,x\n";
    let error = parse(text, None).unwrap_err();
    assert!(error.why.contains("'colour'") && error.why.contains("'red' in line 2"), "{error}");
    assert!(error.hint.unwrap().contains("data.ignore"));
    let ignore = ["colour".to_owned()];
    let options = TableOptions { ignore: &ignore, ..TableOptions::default() };
    let table = Table::parse(Path::new("t.csv"), text.as_bytes(), options).unwrap();
    assert_eq!(table.columns(), ["a"]);
}

#[test]
fn many_different_numbers_are_predicted_as_numbers() {
    let lines = |label: fn(u32) -> String| -> String {
        (0..50).fold("a,b\n".to_owned(), |text, at| text + &format!("{at},{}\n", label(at)))
    };
    let prices = parse(&lines(|at| format!("{}.5", at % 30)), None).unwrap();
    assert!(prices.form().is_regression() && prices.classes().is_empty());
    assert_eq!(labels(&prices)[31], Label::Number(1.5));
    assert!(prices.notes()[0].contains("regression"), "{:?}", prices.notes());
    assert!(parse(&lines(|at| at.to_string()), None).unwrap().form().is_regression());
    let digits = parse(&lines(|at| (at % 10).to_string()), None).unwrap();
    assert_eq!((digits.classes().len(), digits.form().is_regression()), (10, false));
    let task = Task::Classify;
    let options = TableOptions { task, ..TableOptions::default() };
    let text = lines(|at| at.to_string());
    let asked = Table::parse(Path::new("t.csv"), text.as_bytes(), options).unwrap();
    assert_eq!(asked.classes().len(), 50);
}

#[test]
fn in_regression_a_label_that_is_no_number_is_a_bad_line() {
    let options = TableOptions { task: Task::Regress, ..TableOptions::default() };
    let text = "a,b\n1,2.5\n2,much\n";
    let table = Table::parse(Path::new("t.csv"), text.as_bytes(), options).unwrap();
    assert_eq!(table.read(1).unwrap_err(), "its b is 'much', which is not a number");
}

#[test]
fn known_columns_and_classes_are_found_by_name() {
    let trained = parse("a,b,kind\n1,2,x\n3,4,y\n5,6,z\n", None).unwrap();
    let known = DataDescription {
        form: trained.form(),
        classes: trained.classes().to_vec(),
        columns: trained.columns().to_vec(),
        label: Some("kind".to_owned()),
        vocabulary: None,
        normalisation: crate::data::Normalisation::identity(2),
        target: None,
    };
    let read = |text: &str, unlabelled: bool| {
        let known = Some(&known);
        let options = TableOptions { known, unlabelled, ..TableOptions::default() };
        Table::parse(Path::new("t.csv"), text.as_bytes(), options)
    };
    let table = read("kind,b,new,a\nz,20,0,10\nx,40,0,30\n", false).unwrap();
    let expected = Sample::Dense { values: vec![10.0, 20.0], label: Label::Class(2) };
    assert_eq!(table.read(0).unwrap(), expected);
    assert!(table.notes()[0].contains("new"), "{:?}", table.notes());
    let error = read("a,c,kind\n1,2,x\n", false).unwrap_err();
    assert!(error.why.contains("'b', which the model was trained with"), "{error}");
    let error = read("a,b,kind\n1,2,x\n3,4,w\n", false).unwrap_err();
    assert!(error.place.ends_with("t.csv:3") && error.why.contains("'w'"), "{error}");
    for unlabelled in ["b,a\n2,1\n", "1,2\n"] {
        let table = read(unlabelled, true).unwrap();
        let Sample::Dense { values, .. } = table.read(0).unwrap() else { panic!() };
        assert_eq!(values, [1.0, 2.0], "{unlabelled}");
    }
    assert!(read("1,2,3\n", true).is_ok(), "the last column is the label");
    assert!(read("1,2,3,4\n", true).unwrap_err().why.contains("trained with 2: a, b"));
}

#[test]
fn numbers_among_words_are_ordered_as_words() {
    assert_eq!(parse("1,10\n2,9\n3,1.0\n4,1\n", None).unwrap().classes(), ["1", "1.0", "9", "10"]);
    let mixed = parse("1,10\n2,9\n3,1a\n", None).unwrap();
    assert_eq!(mixed.classes(), ["10", "1a", "9"]);
    // 9 < 10 < 1a < 9 in a circle: enough of them make a sort by pairs panic.
    let many: String = (0..60)
        .map(|n| if n % 3 == 0 { format!("0,{n}a\n") } else { format!("0,{}\n", n * 7 % 60) })
        .collect();
    assert!(parse(&many, None).unwrap().classes().len() > 40);
}

proptest! {
    #[test]
    fn any_text_is_a_table_or_an_error(text in "[a-c0-9,.\n\"]{0,80}") {
        if let Ok(table) = parse(&text, None) {
            (0..table.len()).for_each(|at| drop(table.read(at)));
        }
    }
}
