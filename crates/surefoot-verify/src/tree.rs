//! The commitment: an RFC 6962 Merkle tree (SHA-256) over every sketch with the challenge, the
//! site and the policy it belongs to. Its root stands for all of them; the path from a leaf to
//! the root shows that the leaf belongs to it, without the others.

use ct_merkle::mem_backed_tree::MemoryBackedTree;
use ct_merkle::{InclusionProof, RootHash};
use sha2::Sha256;

use crate::error::VerifyError;
use crate::hex;
use crate::site::Site;
use crate::sketch::Sketch;

/// The leaves and all nodes above them.
pub(crate) struct Tree(MemoryBackedTree<Sha256, Vec<u8>>);

/// A leaf's bytes.
pub(crate) fn leaf(
    policy: &[u8; 32],
    number: usize,
    ids: &[u32],
    site: Site,
    sketch: &Sketch,
) -> Vec<u8> {
    let site = site.to_string();
    let mut bytes = b"surefoot leaf 1\0".to_vec();
    bytes.extend(policy);
    bytes.extend((number as u64).to_le_bytes());
    bytes.extend((ids.len() as u64).to_le_bytes());
    bytes.extend(ids.iter().flat_map(|id| id.to_le_bytes()));
    bytes.extend((site.len() as u64).to_le_bytes());
    bytes.extend(site.as_bytes());
    bytes.extend(sketch.to_bytes());
    bytes
}

impl Tree {
    pub(crate) fn new(leaves: impl Iterator<Item = Vec<u8>>) -> Self {
        let mut tree = MemoryBackedTree::new();
        leaves.for_each(|leaf| tree.push(leaf));
        Self(tree)
    }

    pub(crate) fn root(&self) -> String {
        hex::encode(self.0.root().as_bytes())
    }

    /// The path from the leaf `at` to the root: hashes of 32 bytes. The leaf must exist.
    pub(crate) fn path(&self, at: usize) -> Vec<u8> {
        self.0.prove_inclusion(at).as_bytes().to_vec()
    }
}

/// Whether `path` leads from `leaf`, the `at`-th of `leaves`, to `root`.
pub(crate) fn check_path(
    root: &str,
    leaves: usize,
    at: usize,
    leaf: &[u8],
    path: &[u8],
) -> Result<(), VerifyError> {
    let root = RootHash::<Sha256>::new(hex::decode32(root)?.into(), leaves as u64);
    let wrong = |_| VerifyError::document("the path doesn't lead from the leaf to the root");
    let proof = InclusionProof::try_from_bytes(path.to_vec()).map_err(wrong)?;
    root.verify_inclusion(&leaf.to_vec(), at as u64, &proof).map_err(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(count: u8) -> Tree {
        Tree::new((0..count).map(|x| vec![x; 3]))
    }

    #[test]
    fn the_root_is_the_one_of_the_rfc() {
        // Certificate Transparency's own example: the leaf "" alone, and no leaf at all.
        let one = Tree::new(std::iter::once(Vec::new()));
        assert_eq!(one.root(), "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d");
        assert_eq!(
            tree(0).root(),
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
        );
    }

    #[test]
    fn a_path_fits_its_own_leaf_alone() {
        let tree = tree(13);
        let root = tree.root();
        for at in 0..13 {
            let path = tree.path(at);
            check_path(&root, 13, at, &[at as u8; 3], &path).unwrap();
            assert!(check_path(&root, 13, at, &[99; 3], &path).is_err());
            assert!(check_path(&root, 13, (at + 1) % 13, &[at as u8; 3], &path).is_err());
            let mut broken = path.clone();
            broken[7] ^= 1;
            assert!(check_path(&root, 13, at, &[at as u8; 3], &broken).is_err());
            assert!(check_path(&root, 13, at, &[at as u8; 3], &path[1..]).is_err());
        }
    }
}
