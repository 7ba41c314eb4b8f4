//! Numbers within limits as regular expressions over their digits.

use derivre::RegexAst;

use super::{At, literal};
use crate::error::GrammarError;
use crate::json::Json;

/// Digits before the point, unless a limit has more.
const WHOLE: usize = 15;
/// Digits behind the point.
const FRACTION: usize = 16;
/// The largest numerator of `multipleOf`, and the most digits behind its point.
const MOST_MULTIPLE: f64 = 100_000_000.0;
const MOST_SCALE: u32 = 8;

/// The digits of a limit before and behind the point, without its sign.
#[derive(Clone, Debug, PartialEq)]
struct Decimal {
    whole: Vec<u8>,
    fraction: Vec<u8>,
}

/// The numbers that a schema admits.
#[derive(Clone, Debug, Default)]
struct Range {
    /// The limit, and whether it is outside.
    least: Option<(f64, bool)>,
    most: Option<(f64, bool)>,
    multiples: Vec<f64>,
}

impl Range {
    fn of(schemas: &[At<'_>]) -> Result<Self, GrammarError> {
        let mut range = Self::default();
        for at in schemas {
            let number = |key: &str| -> Result<Option<f64>, GrammarError> {
                match at.inside(key) {
                    None => Ok(None),
                    Some(part) => match part.schema {
                        Json::Number(number) => Ok(number.as_f64()),
                        // Before draft 6 these were flags of the limits.
                        Json::Bool(false) if key.starts_with("exclusive") => Ok(None),
                        _ => Err(part.wrong(format!("'{key}' must be a number"))),
                    },
                }
            };
            let flag = |key: &str| matches!(at.schema.get(key), Some(Json::Bool(true)));
            let (low_flag, high_flag) = (flag("exclusiveMinimum"), flag("exclusiveMaximum"));
            if let Some(least) = number("minimum")? {
                range.at_least(least, low_flag);
            }
            if let Some(most) = number("maximum")? {
                range.at_most(most, high_flag);
            }
            if !low_flag && let Some(least) = number("exclusiveMinimum")? {
                range.at_least(least, true);
            }
            if !high_flag && let Some(most) = number("exclusiveMaximum")? {
                range.at_most(most, true);
            }
            if let Some(multiple) = number("multipleOf")? {
                if multiple <= 0.0 {
                    return Err(at.wrong("'multipleOf' must be more than 0"));
                }
                range.multiples.push(multiple);
            }
        }
        Ok(range)
    }

    fn at_least(&mut self, limit: f64, is_outside: bool) {
        let closer = self
            .least
            .is_none_or(|(old, outside)| limit > old || (limit == old && is_outside && !outside));
        if closer {
            self.least = Some((limit, is_outside));
        }
    }

    fn at_most(&mut self, limit: f64, is_outside: bool) {
        let closer = self
            .most
            .is_none_or(|(old, outside)| limit < old || (limit == old && is_outside && !outside));
        if closer {
            self.most = Some((limit, is_outside));
        }
    }

    /// The limits that whole numbers have.
    fn whole(mut self) -> Self {
        self.least = self.least.map(|(limit, outside)| {
            let up = limit.ceil();
            (if outside && up == limit { up + 1.0 } else { up }, false)
        });
        self.most = self.most.map(|(limit, outside)| {
            let down = limit.floor();
            (if outside && down == limit { down - 1.0 } else { down }, false)
        });
        self
    }
}

/// The numbers that all schemas admit.
pub(super) fn regex(schemas: &[At<'_>], is_integer: bool) -> Result<RegexAst, GrammarError> {
    let range = Range::of(schemas)?;
    let range = if is_integer { range.whole() } else { range };
    let multiples = multiples(schemas, &range)?;
    let with = |positive: RegexAst| match multiples.is_empty() {
        true => positive,
        false => RegexAst::And([vec![positive], multiples.clone()].concat()),
    };
    let mut parts = Vec::new();
    let is_free = range.least.is_none() && range.most.is_none() && multiples.is_empty();
    // From 0 on.
    if range.most.is_none_or(|(most, outside)| most > 0.0 || (most == 0.0 && !outside)) {
        let least = range.least.filter(|(limit, _)| *limit >= 0.0);
        parts.push(with(magnitude(least, range.most, is_integer)));
    }
    // Below 0, where the limits change sides.
    if range.least.is_none_or(|(least, _)| least < 0.0) {
        let most = range.least.map(|(limit, outside)| (-limit, outside));
        let least = range.most.filter(|(limit, _)| *limit <= 0.0);
        let least = least.map(|(limit, outside)| (-limit, outside));
        let positive = with(magnitude(least, most, is_integer));
        parts.push(RegexAst::Concat(vec![RegexAst::Literal("-".to_owned()), positive]));
    }
    let mut number = RegexAst::Or(parts);
    if is_free && !is_integer {
        let exponent = RegexAst::Regex("([eE][+-]?[0-9]{1,2})?".to_owned());
        number = RegexAst::Concat(vec![number, exponent]);
    }
    let excluded: Vec<RegexAst> = literal::excluded(schemas)?
        .into_iter()
        .filter(|value| matches!(value, Json::Number(_)))
        .map(|value| RegexAst::Regex(spellings(&value.text())))
        .collect();
    if !excluded.is_empty() {
        if is_free && !is_integer {
            let problem = "'not' with a number needs 'minimum' or 'maximum' beside it";
            return Err(GrammarError::Schema {
                path: schemas[0].path.clone(),
                problem: problem.to_owned(),
            });
        }
        number = RegexAst::And(vec![number, RegexAst::Not(Box::new(RegexAst::Or(excluded)))]);
    }
    Ok(number)
}

/// All spellings of a number without exponent.
fn spellings(number: &str) -> String {
    let number = number.trim_end_matches(".0").replace('.', "\\.");
    match number.contains('.') {
        true => format!("{number}0*"),
        false if number == "0" => "-?0(\\.0*)?".to_owned(),
        false => format!("{number}(\\.0*)?"),
    }
}

/// Whether a number that `enum` names is admitted by all schemas.
pub(super) fn admits(schemas: &[At<'_>], literal: &Json) -> Result<bool, GrammarError> {
    let Json::Number(number) = literal else { return Ok(true) };
    let Some(value) = number.as_f64() else { return Ok(true) };
    let range = Range::of(schemas)?;
    let inside = |limit: Option<(f64, bool)>, sign: f64| {
        limit.is_none_or(|(limit, outside)| {
            let over = (value - limit) * sign;
            over > 0.0 || (over == 0.0 && !outside)
        })
    };
    if !inside(range.least, 1.0) || !inside(range.most, -1.0) {
        return Ok(false);
    }
    let is_multiple = |multiple: &f64| {
        let times = value / multiple;
        (times - times.round()).abs() < 1e-9 * times.abs().max(1.0)
    };
    Ok(range.multiples.iter().all(is_multiple))
}

/// Multiples of a decimal number are written with all its digits behind the point, or none.
fn multiples(schemas: &[At<'_>], range: &Range) -> Result<Vec<RegexAst>, GrammarError> {
    let refused = |multiple: f64| GrammarError::Schema {
        path: schemas.first().map_or_else(String::new, |at| at.path.clone()),
        problem: format!(
            "'multipleOf' {multiple} has too many digits; {MOST_SCALE} behind the point and \
             {MOST_MULTIPLE} in all can be"
        ),
    };
    range
        .multiples
        .iter()
        .map(|&multiple| {
            let mut scaled = multiple;
            let mut scale = 0;
            while scaled.fract() != 0.0 && scale < MOST_SCALE {
                scale += 1;
                // From the number itself, so that errors don't add up.
                scaled = (multiple * 10_f64.powi(scale as i32) * 1e6).round() / 1e6;
            }
            if scaled.fract() != 0.0 || !(1.0..=MOST_MULTIPLE).contains(&scaled) {
                return Err(refused(multiple));
            }
            Ok(RegexAst::MultipleOf(scaled as u32, scale))
        })
        .collect()
}

/// Numbers from 0 on between limits that are not negative.
fn magnitude(least: Option<(f64, bool)>, most: Option<(f64, bool)>, is_integer: bool) -> RegexAst {
    let digits = [least, most]
        .into_iter()
        .flatten()
        .map(|(limit, _)| decimal(limit).whole.len())
        .fold(WHOLE, usize::max);
    let any = any_number(digits, is_integer);
    let mut parts = vec![RegexAst::Regex(any)];
    if let Some((limit, outside)) = least {
        parts.push(RegexAst::Regex(at_least(&decimal(limit), outside, digits)));
    }
    if let Some((limit, outside)) = most {
        parts.push(RegexAst::Regex(at_most(&decimal(limit), outside)));
    }
    RegexAst::And(parts)
}

fn any_number(digits: usize, is_integer: bool) -> String {
    let whole = format!("(0|[1-9][0-9]{{0,{}}})", digits - 1);
    if is_integer { whole } else { format!("{whole}{}", any_fraction()) }
}

fn any_fraction() -> String {
    format!("(\\.[0-9]{{1,{FRACTION}}})?")
}

/// The digits of a number, exactly as it is written.
fn decimal(number: f64) -> Decimal {
    let text = format!("{}", number.abs());
    let (whole, fraction) = text.split_once('.').unwrap_or((&text, ""));
    Decimal {
        whole: whole.bytes().map(|byte| byte - b'0').collect(),
        fraction: fraction.bytes().map(|byte| byte - b'0').take(FRACTION).collect(),
    }
}

fn written(digits: &[u8]) -> String {
    digits.iter().map(|digit| char::from(b'0' + digit)).collect()
}

fn any_digits(count: usize) -> String {
    match count {
        0 => String::new(),
        count => format!("[0-9]{{{count}}}"),
    }
}

/// Whole numbers that are more than `digits`, of at most `most` digits.
fn whole_above(digits: &[u8], most: usize) -> Vec<String> {
    let count = digits.len();
    let mut choices = Vec::new();
    if count < most {
        choices.push(format!("[1-9][0-9]{{{count},{}}}", most - 1));
    }
    for (at, digit) in digits.iter().enumerate().filter(|(_, digit)| **digit < 9) {
        let rest = any_digits(count - at - 1);
        choices.push(format!("{}[{}-9]{rest}", written(&digits[..at]), digit + 1));
    }
    choices
}

/// Whole numbers that are less than `digits`.
fn whole_below(digits: &[u8]) -> Vec<String> {
    let count = digits.len();
    let mut choices = Vec::new();
    if count > 1 {
        choices.push("0".to_owned());
        choices.push(format!("[1-9][0-9]{{0,{}}}", count - 2));
    }
    for (at, &digit) in digits.iter().enumerate() {
        let lowest = u8::from(at == 0 && count > 1);
        if digit > lowest {
            let rest = any_digits(count - at - 1);
            choices.push(format!("{}[{lowest}-{}]{rest}", written(&digits[..at]), digit - 1));
        }
    }
    choices
}

/// Numbers that are `limit` or more, or more than it.
fn at_least(limit: &Decimal, is_outside: bool, digits: usize) -> String {
    let mut choices: Vec<String> = whole_above(&limit.whole, digits)
        .into_iter()
        .map(|whole| format!("{whole}{}", any_fraction()))
        .collect();
    let whole = written(&limit.whole);
    let fraction = trimmed(&limit.fraction);
    if fraction.is_empty() {
        choices.push(match is_outside {
            true => format!("{whole}\\.0{{0,{}}}[1-9][0-9]{{0,{FRACTION}}}", FRACTION - 1),
            false => format!("{whole}{}", any_fraction()),
        });
    } else {
        for (at, digit) in fraction.iter().enumerate().filter(|(_, digit)| **digit < 9) {
            let begin = written(&fraction[..at]);
            choices.push(format!("{whole}\\.{begin}[{}-9][0-9]{{0,{FRACTION}}}", digit + 1));
        }
        let same = written(fraction);
        choices.push(match is_outside {
            true => format!("{whole}\\.{same}0{{0,{FRACTION}}}[1-9][0-9]{{0,{FRACTION}}}"),
            false => format!("{whole}\\.{same}[0-9]{{0,{FRACTION}}}"),
        });
    }
    choices.join("|")
}

/// Numbers that are `limit` or less, or less than it.
fn at_most(limit: &Decimal, is_outside: bool) -> String {
    let mut choices: Vec<String> = whole_below(&limit.whole)
        .into_iter()
        .map(|whole| format!("{whole}{}", any_fraction()))
        .collect();
    let whole = written(&limit.whole);
    let fraction = trimmed(&limit.fraction);
    if fraction.is_empty() {
        if !is_outside {
            choices.push(format!("{whole}(\\.0{{1,{FRACTION}}})?"));
        }
    } else {
        choices.push(whole.clone());
        for (at, &digit) in fraction.iter().enumerate() {
            let begin = written(&fraction[..at]);
            if at > 0 {
                choices.push(format!("{whole}\\.{begin}"));
            }
            if digit > 0 {
                choices.push(format!("{whole}\\.{begin}[0-{}][0-9]{{0,{FRACTION}}}", digit - 1));
            }
        }
        if !is_outside {
            choices.push(format!("{whole}\\.{}0{{0,{FRACTION}}}", written(fraction)));
        }
    }
    match choices.is_empty() {
        // Nothing is less than 0 without a sign.
        true => "[^\\x{0}-\\x{10ffff}]".to_owned(),
        false => choices.join("|"),
    }
}

fn trimmed(fraction: &[u8]) -> &[u8] {
    let end = fraction.iter().rposition(|digit| *digit != 0).map_or(0, |at| at + 1);
    &fraction[..end]
}

#[cfg(test)]
mod tests {
    use derivre::RegexBuilder;

    use super::*;

    fn matches(schema: &str, is_integer: bool, text: &str) -> bool {
        let json: Json = serde_json::from_str(schema).unwrap();
        let at = At { schema: &json, path: String::new() };
        let mut builder = RegexBuilder::new();
        let expression = builder.mk(&regex(&[at], is_integer).unwrap()).unwrap();
        builder.into_regex(expression).is_match(text)
    }

    #[test]
    fn whole_numbers_within_limits_are_exactly_those() {
        for (low, high) in [(0, 0), (-3, 17), (5, 123), (99, 1001), (-120, -7), (-10, 0), (7, 7)] {
            let schema = format!(r#"{{"minimum": {low}, "maximum": {high}}}"#);
            let outside = format!(r#"{{"exclusiveMinimum": {low}, "exclusiveMaximum": {high}}}"#);
            for number in -200..1100 {
                let text = number.to_string();
                assert_eq!(
                    matches(&schema, true, &text),
                    (low..=high).contains(&number),
                    "{schema} {number}"
                );
                let strictly = low < number && number < high;
                assert_eq!(matches(&outside, true, &text), strictly, "{outside} {number}");
            }
            assert!(!matches(&schema, true, "007"));
        }
        assert!(matches("{}", true, "-123456789012345"));
        assert!(!matches("{}", true, "1.5"));
    }

    #[test]
    fn decimals_within_limits_are_exactly_those() {
        let numbers: Vec<i32> = (-300..=300).collect();
        for (low, high) in [(-1.25, 0.5), (0.1, 0.35), (1.05, 2.0), (-2.5, -1.75), (0.0, 1.0)] {
            for outside in [false, true] {
                let schema = match outside {
                    false => format!(r#"{{"minimum": {low}, "maximum": {high}}}"#),
                    true => format!(r#"{{"exclusiveMinimum": {low}, "exclusiveMaximum": {high}}}"#),
                };
                for hundredths in &numbers {
                    let number = f64::from(*hundredths) / 100.0;
                    let expected = match outside {
                        false => low <= number && number <= high,
                        true => low < number && number < high,
                    };
                    for text in
                        [format!("{number}"), format!("{number:.2}"), format!("{number:.4}")]
                    {
                        if text.starts_with("-0") && number == 0.0 {
                            continue;
                        }
                        assert_eq!(matches(&schema, false, &text), expected, "{schema} {text}");
                    }
                }
            }
        }
        assert!(matches("{}", false, "-1.5e-7"));
    }

    #[test]
    fn multiples_are_exactly_those() {
        for number in -50..50 {
            let text = number.to_string();
            assert_eq!(matches(r#"{"multipleOf": 7}"#, true, &text), number % 7 == 0, "{number}");
        }
        for (text, is) in
            [("0.25", true), ("1.50", true), ("0.30", false), ("-2.75", true), ("3", true)]
        {
            assert_eq!(matches(r#"{"multipleOf": 0.25}"#, false, text), is, "{text}");
        }
    }
}
