import { api } from "../api";
import { percent } from "../format";
import { messages } from "../i18n";
import { draftField } from "../state/drafts";
import { applyWorkspace } from "../state/live";
import { session } from "../state/session";
import { useTask } from "../state/task";
import type { Workspace, WorkspaceChanges } from "../types";
import { DraftButtons } from "./DraftButtons";
import { ErrorNote } from "./ErrorNote";
import { Field } from "./Field";
import { TtlSelect, ttlFromText, ttlToText } from "./TtlSelect";

function settingsDrafts(workspace: Workspace) {
  return {
    name: draftField(`${workspace.id}/name`, workspace.name),
    description: draftField(`${workspace.id}/description`, workspace.description),
    standby: draftField(`${workspace.id}/standby-ttl`, ttlToText(workspace.standby_ttl_seconds)),
    archive: draftField(`${workspace.id}/archive-ttl`, ttlToText(workspace.archive_ttl_seconds)),
    awakeCpu: draftField(`${workspace.id}/awake-cpu`, ttlToText(workspace.awake_cpu_percent)),
  };
}

type Drafts = ReturnType<typeof settingsDrafts>;

/**
 * Returns the edited fields only, so that users who edit different fields do not undo each other's
 * changes.
 */
function changesOf({ name, description, standby, archive, awakeCpu }: Drafts): WorkspaceChanges {
  return {
    ...(name.dirty ? { name: name.value.trim() } : {}),
    ...(description.dirty ? { description: description.value.trim() } : {}),
    ...(standby.dirty ? { standby_ttl_seconds: ttlFromText(standby.value) } : {}),
    ...(archive.dirty ? { archive_ttl_seconds: ttlFromText(archive.value) } : {}),
    ...(awakeCpu.dirty ? { awake_cpu_percent: ttlFromText(awakeCpu.value) } : {}),
  };
}

export function SettingsForm({ workspace }: { workspace: Workspace }) {
  const text = messages.value;
  const ttl = session.value?.ttl;
  const task = useTask();
  const drafts = settingsDrafts(workspace);
  const { name, description, standby, archive, awakeCpu } = drafts;
  const fields = Object.values(drafts);
  const dirty = fields.some((field) => field.dirty);

  const save = async (event: Event) => {
    event.preventDefault();
    if (!dirty) return;
    await task.run(async () => {
      applyWorkspace(await api.patchWorkspace(workspace.id, changesOf(drafts)));
      for (const field of fields) field.saved(field.value);
    });
  };
  return (
    <form class="panel" onSubmit={save}>
      <h2>{text.detail.settings}</h2>
      <Field label={text.create.name}>
        {(ids) => (
          <input
            {...ids}
            type="text"
            required
            maxLength={64}
            value={name.value}
            onInput={(event) => name.set(event.currentTarget.value)}
          />
        )}
      </Field>
      <Field label={text.create.description}>
        {(ids) => (
          <input
            {...ids}
            type="text"
            maxLength={1000}
            value={description.value}
            onInput={(event) => description.set(event.currentTarget.value)}
          />
        )}
      </Field>
      <TtlSelect
        kind="standby"
        label={text.create.standbyTtl}
        value={standby.value}
        defaultSeconds={ttl?.standby_seconds ?? 0}
        onChange={standby.set}
      />
      <TtlSelect
        kind="archive"
        label={text.create.archiveTtl}
        value={archive.value}
        defaultSeconds={ttl?.archive_seconds ?? 0}
        onChange={archive.set}
      />
      <Field
        label={text.create.awakeCpu}
        hint={text.create.awakeCpuHint(
          ttl?.awake_cpu_percent ? percent(ttl.awake_cpu_percent) : text.create.awakeCpuOff,
        )}
      >
        {(ids) => (
          <input
            {...ids}
            type="number"
            min={0}
            max={10_000}
            step={1}
            inputMode="numeric"
            data-testid="awake-cpu"
            value={awakeCpu.value}
            onInput={(event) => awakeCpu.set(event.currentTarget.value)}
          />
        )}
      </Field>
      <ErrorNote error={task.error} />
      <DraftButtons
        dirty={dirty}
        conflict={fields.some((field) => field.conflict)}
        busy={task.busy}
        testId="settings-save"
        onDiscard={() => {
          for (const field of fields) field.discard();
        }}
      />
    </form>
  );
}
