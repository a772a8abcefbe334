import type { ComponentChildren } from "preact";

import { messages } from "../i18n";
import type { Phase } from "../types";
import { LIVING_PHASES, type Selection, SORT_KEYS, type SortKey } from "../workspace";
import { Field } from "./Field";

interface Props {
  selection: Selection;
  onChange: (selection: Selection) => void;
  children?: ComponentChildren;
}

export function ListTools({ selection, onChange, children }: Props) {
  const text = messages.value;
  return (
    <search class="tools">
      <SearchField value={selection.query} onChange={(query) => onChange({ ...selection, query })} />
      <PhaseFilter
        phases={LIVING_PHASES}
        value={selection.phase}
        onChange={(phase) => onChange({ ...selection, phase })}
      />
      <Field label={text.list.sort}>
        {(ids) => (
          <select
            {...ids}
            value={selection.sort}
            data-testid="list-sort"
            onChange={(event) => onChange({ ...selection, sort: event.currentTarget.value as SortKey })}
          >
            {SORT_KEYS.map((key) => (
              <option key={key} value={key}>
                {text.sort[key]}
              </option>
            ))}
          </select>
        )}
      </Field>
      {children}
    </search>
  );
}

export function SearchField({ value, onChange }: { value: string; onChange: (query: string) => void }) {
  const text = messages.value.list;
  return (
    <Field label={text.search}>
      {(ids) => (
        <input
          {...ids}
          type="search"
          data-search
          maxLength={100}
          data-testid="list-search"
          placeholder={text.searchPlaceholder}
          value={value}
          onInput={(event) => onChange(event.currentTarget.value)}
        />
      )}
    </Field>
  );
}

interface PhaseFilterProps {
  phases: readonly Phase[];
  value: Phase | "";
  onChange: (phase: Phase | "") => void;
}

export function PhaseFilter({ phases, value, onChange }: PhaseFilterProps) {
  const text = messages.value;
  return (
    <Field label={text.list.phase}>
      {(ids) => (
        <select
          {...ids}
          value={value}
          data-testid="list-phase"
          onChange={(event) => onChange(event.currentTarget.value as Phase | "")}
        >
          <option value="">{text.list.allPhases}</option>
          {phases.map((phase) => (
            <option key={phase} value={phase}>
              {text.phases[phase]}
            </option>
          ))}
        </select>
      )}
    </Field>
  );
}
