//! Finds pages whose tokens were run before, so that prompts that begin alike (the same system prompt, a chat
//! that goes on) share them.
//!
//! Only whole pages are kept: they are never written again. An entry is found by the entry of the page before it
//! and its own tokens, so equal pages behind different beginnings are different entries. What an entry is
//! found by first is a namespace: sequences of different namespaces (adapters) share nothing. Entries that no sequence uses
//! are removed when their memory is needed, the least recently used first, and of a beginning the last page first.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;

use surefoot_ops::PAGE_TOKENS;

use super::pool::Page;

/// Where an entry stands: behind a namespace, or behind another entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Parent {
    Namespace(u64),
    Entry(u64),
}

type Tokens = [u32; PAGE_TOKENS];

#[derive(Debug)]
struct Entry {
    number: u64,
    page: Arc<Page>,
    depth: usize,
    used: u64,
}

/// Pages that were run, by what they hold.
#[derive(Debug, Default)]
pub(super) struct PrefixIndex {
    entries: HashMap<(Parent, Tokens), Entry>,
    next: u64,
    clock: u64,
}

impl PrefixIndex {
    /// The pages of the longest beginning of `tokens` that is known, and where the next entry would stand. The
    /// last token is not part of it: it has to be run in any case.
    pub(super) fn find(&mut self, namespace: u64, tokens: &[u32]) -> (Vec<Arc<Page>>, Parent) {
        self.clock += 1;
        let mut parent = Parent::Namespace(namespace);
        let mut pages = Vec::new();
        let (whole, _) = tokens[..tokens.len().saturating_sub(1)].as_chunks::<PAGE_TOKENS>();
        for tokens in whole {
            let Some(entry) = self.entries.get_mut(&(parent, *tokens)) else { break };
            entry.used = self.clock;
            pages.push(Arc::clone(&entry.page));
            parent = Parent::Entry(entry.number);
        }
        (pages, parent)
    }

    /// How many pages [`find`](Self::find) would give, and how many of them sequences use now.
    pub(super) fn known(&self, namespace: u64, tokens: &[u32]) -> (usize, usize) {
        let mut parent = Parent::Namespace(namespace);
        let (mut known, mut in_use) = (0, 0);
        let (whole, _) = tokens[..tokens.len().saturating_sub(1)].as_chunks::<PAGE_TOKENS>();
        for tokens in whole {
            let Some(entry) = self.entries.get(&(parent, *tokens)) else { break };
            known += 1;
            in_use += usize::from(Arc::strong_count(&entry.page) > 1);
            parent = Parent::Entry(entry.number);
        }
        (known, in_use)
    }

    /// Makes a whole page known, unless one with the same tokens is there; gives where the next one stands.
    pub(super) fn keep(
        &mut self,
        parent: Parent,
        tokens: Tokens,
        depth: usize,
        page: &Arc<Page>,
    ) -> Parent {
        let (next, used) = (&mut self.next, self.clock);
        let entry = self.entries.entry((parent, tokens)).or_insert_with(|| {
            *next += 1;
            Entry { number: *next, page: Arc::clone(page), depth, used }
        });
        entry.used = used;
        Parent::Entry(entry.number)
    }

    /// How many entries no sequence uses.
    pub(super) fn idle(&self) -> usize {
        self.entries.values().filter(|entry| Arc::strong_count(&entry.page) == 1).count()
    }

    /// Removes up to `count` entries that no sequence uses, and gives how many they were.
    pub(super) fn evict(&mut self, count: usize) -> usize {
        let mut idle: Vec<_> = self
            .entries
            .iter()
            .filter(|(_, entry)| Arc::strong_count(&entry.page) == 1)
            .map(|(key, entry)| (entry.used, Reverse(entry.depth), *key))
            .collect();
        let count = count.min(idle.len());
        if count > 0 && count < idle.len() {
            idle.select_nth_unstable_by_key(count - 1, |(used, depth, _)| (*used, *depth));
        }
        for (_, _, key) in &idle[..count] {
            self.entries.remove(key);
        }
        count
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate::pages::pool::PagePool;
    use surefoot_ops::PageLayout;

    fn tokens(first: u32, pages: usize) -> Vec<u32> {
        (0..(pages * PAGE_TOKENS) as u32 + 1).map(|at| first + at).collect()
    }

    /// Keeps all whole pages of `tokens`, as a sequence that has run does.
    fn keep(index: &mut PrefixIndex, pool: &PagePool, namespace: u64, tokens: &[u32]) {
        let (mut pages, mut parent) = index.find(namespace, tokens);
        for (depth, page) in tokens.as_chunks::<PAGE_TOKENS>().0.iter().enumerate() {
            if depth == pages.len() {
                pages.push(pool.take().unwrap());
                parent = index.keep(parent, *page, depth, &pages[depth]);
            }
        }
    }

    #[test]
    fn the_longest_beginning_is_found_within_its_namespace_and_the_last_token_is_left() {
        let pool = PagePool::new(PageLayout { layers: 1, kv_heads: 1, head_dim: 1 }, 100);
        let mut index = PrefixIndex::default();
        let known = tokens(0, 3);
        keep(&mut index, &pool, 7, &known);
        assert_eq!((index.entries.len(), pool.in_use()), (3, 3));
        assert_eq!(index.known(7, &known), (3, 0));
        assert_eq!(index.known(7, &known[..3 * PAGE_TOKENS]), (2, 0), "one is left to run");
        assert_eq!(index.known(8, &known), (0, 0), "another namespace");
        let mut other = known.clone();
        other[PAGE_TOKENS + 3] = 999;
        assert_eq!(index.known(7, &other), (1, 0));
        // The same second page behind another first page is another page.
        other.clone_from(&known);
        other[0] = 999;
        assert_eq!(index.known(7, &other), (0, 0));
    }

    #[test]
    fn the_least_recently_used_pages_go_first_and_those_in_use_stay() {
        let pool = PagePool::new(PageLayout { layers: 1, kv_heads: 1, head_dim: 1 }, 100);
        let mut index = PrefixIndex::default();
        let [old, new, held] = [tokens(0, 2), tokens(1000, 2), tokens(2000, 2)];
        for tokens in [&held, &old, &new] {
            keep(&mut index, &pool, 0, tokens);
        }
        let (in_use, _) = index.find(0, &held);
        index.clock += 1;
        assert_eq!(index.find(0, &new).0.len(), 2);
        assert_eq!((index.idle(), index.evict(1)), (4, 1));
        assert_eq!(index.known(0, &old), (1, 0), "its last page is gone, its first is not");
        assert_eq!(index.known(0, &held), (2, 2), "in use");
        assert_eq!(index.evict(2), 2);
        assert_eq!((index.known(0, &old), index.known(0, &new)), ((0, 0), (1, 0)));
        assert_eq!(index.evict(9), 1, "the others are in use");
        drop(in_use);
        assert_eq!((index.evict(9), pool.in_use()), (2, 0));
    }
}
