//! Ids: generated ones, prefixes, completion, and the deletion of all sandboxes.

use crate::transcript::Stage;

#[test]
fn a_generated_id_is_short_and_its_beginning_is_enough() {
    let stage = Stage::new();
    let id = stage.run("sandpod create --quiet").trim().to_owned();
    assert_eq!(id.len(), 11, "{id}");
    let exec = format!("sandpod exec {} echo here", &id[..9]);
    assert_eq!(stage.run(&exec), format!("using sandbox {id}\nhere\n"));
    let quiet = exec.replace("exec", "--quiet exec");
    assert_eq!(stage.run(&quiet), "here\n");
    assert_eq!(
        stage.run(&format!("echo x | sandpod write -q {} f; sandpod cat -q {} f", &id[3..], &id[3..8])),
        "x\n"
    );
    assert!(stage.run(&format!("sandpod info {} | head -1", &id[..8])).contains(&id));
    for too_short in [&id[3..], &id[..6]] {
        let printed = stage.run(&format!("sandpod delete {too_short}"));
        assert!(printed.contains("does not exist"), "{printed}");
    }
    assert_eq!(stage.run(&format!("sandpod delete {}", &id[..7])), format!("deleted: {id}\n"));
    assert_eq!(stage.run("sandpod list --quiet"), "");
}

#[test]
fn a_chosen_id_must_be_complete() {
    let stage = Stage::new();
    stage.run("sandpod create --quiet --id web-2");
    for line in ["exec web true", "rm -r web /workspace", "info web", "extend web 1h", "cat web f"] {
        let printed = stage.run(&format!("sandpod {line}"));
        assert!(printed.contains("Sandbox not found"), "{line}: {printed}");
    }
    assert!(stage.run("sandpod delete web").contains("does not exist"));
    assert_eq!(stage.run("sandpod exec web-2 echo kept"), "kept\n");
    stage.run("sandpod delete web-2");
}

#[test]
fn an_ambiguous_beginning_lists_the_ids() {
    let stage = Stage::new();
    stage.run("for id in sp-webaaaaa sp-webbbbbb; do sandpod create --quiet --id $id; done");
    let printed = stage.run("sandpod exec web true");
    assert!(printed.contains("'web' is the beginning of 2 ids: sp-webaaaaa, sp-webbbbbb."), "{printed}");
    assert_eq!(stage.run("sandpod exec webb echo b"), "using sandbox sp-webbbbbb\nb\n");
    stage.run("sandpod delete -af");
    assert_eq!(stage.run("sandpod list --quiet"), "");
}

#[test]
fn delete_all_deletes_the_sandboxes_with_the_labels() {
    let stage = Stage::new();
    stage.run("sandpod create --quiet --id a --label team=x; sandpod create --quiet --id b");
    for refused in ["sandpod delete --all", "sandpod delete --all --label team=x < /dev/null"] {
        let printed = stage.run(refused);
        assert!(printed.contains("Add --force") && printed.ends_with("[exit 2]\n"), "{printed}");
    }
    let printed = stage.run("sandpod delete a --label team=x");
    assert!(printed.contains("--label requires --all") && printed.ends_with("[exit 2]\n"), "{printed}");
    assert_eq!(stage.run("sandpod delete --all --force --label team=x"), "deleted: a\n");
    assert_eq!(stage.run("sandpod delete --all --force"), "deleted: b\n");
    assert_eq!(stage.run("sandpod delete --all --force"), "there are no sandboxes to delete\n");
    assert_eq!(stage.run("sandpod delete -f b"), "");
}

#[test]
fn completion_knows_ids_processes_and_paths() {
    let stage = Stage::new();
    stage.run("sandpod create --quiet --id work; sandpod exec work 'mkdir dir; touch dir/one'; sandpod exec work -d sleep 1000");
    let complete = |words: &str, index: usize| {
        stage.run(&format!("COMPLETE=bash _CLAP_IFS=\"$(printf '\\n')\n\" _CLAP_COMPLETE_INDEX={index} _CLAP_COMPLETE_COMP_TYPE=9 _CLAP_COMPLETE_SPACE=true sandpod -- sandpod {words}"))
    };
    assert!(complete("exec wo", 2).contains("work"));
    assert!(complete("kill work p", 3).contains("p2"));
    assert!(complete("ls work di", 3).contains("dir/"));
    assert!(complete("cp work:dir/o", 2).contains("work:dir/one"));
    assert!(complete("ls --output table work di", 5).contains("dir/"), "`table` is not the id");
    assert!(complete("cp work : dir/o", 4).contains("dir/one"), "bash splits words at colons");
    assert!(stage.run("sandpod completions bash").contains("COMPLETE"));
    stage.run("kill -KILL $(cat .local/state/sandpod/local/work/lock)");
    stage.run("until sandpod info work | grep -q lost; do sleep 0.1; done");
    assert_eq!(complete("ls work di", 3), "");
    assert!(stage.run("sandpod info work").contains("lost"), "a completion starts no guest");
    stage.run("sandpod delete work");
}
