//! The `{% generation %}` tag of transformers' chat templates.
//!
//! Templates for training mark what the assistant says with `{% generation %}` and
//! `{% endgeneration %}`. transformers uses the marks to compute a loss mask and renders what is
//! between them as it is, in a scope of its own. Jinja's `{% with %}` does exactly that, so the
//! tags are replaced by it before the template is parsed.

use std::borrow::Cow;
use std::sync::LazyLock;

use regex::{Captures, Regex};

/// Raw blocks and comments come first in the alternation: what they contain is not a tag.
const TAGS: &str = r"(?s)\{%[-+]?\s*raw\s*[-+]?%\}.*?\{%[-+]?\s*endraw\s*[-+]?%\}|\{#.*?#\}|\{%(?<open>[-+]?)\s*(?<tag>(?:end)?generation)\s*(?<close>[-+]?)%\}";

/// The template with every `generation` block written as a `with` block.
pub(super) fn as_scopes(source: &str) -> Cow<'_, str> {
    static PATTERN: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new(TAGS).ok());
    let Some(pattern) = PATTERN.as_ref() else { return Cow::Borrowed(source) };
    pattern.replace_all(source, |found: &Captures<'_>| {
        let scope = match found.name("tag").map(|tag| tag.as_str()) {
            Some("generation") => "with",
            Some(_) => "endwith",
            None => return found[0].to_owned(),
        };
        format!("{{%{} {scope} {}%}}", &found["open"], &found["close"])
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generation_tags_become_scopes_with_the_same_whitespace_control() {
        assert_eq!(
            as_scopes("{%- generation -%}a{% endgeneration %}{%generation+%}b{%+ endgeneration%}"),
            "{%- with -%}a{% endwith %}{% with +%}b{%+ endwith %}"
        );
    }

    #[test]
    fn comments_raw_blocks_and_other_names_are_left_alone() {
        let source = "{# {% generation %} #}{% raw %}{% generation %}{% endraw %}\
                      {% if add_generation_prompt %}generation{% endif %}";
        assert_eq!(as_scopes(source), source);
    }
}
