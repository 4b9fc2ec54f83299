% Answers, one line each, with the resolvents of a goal by Prolog's own unification.
%
%   load(Clauses).          Clauses: a list of c(Head, Body)    -> [number of clauses]
%   step(Goal, Excluded).   Goal: a list of atoms, not empty    -> the resolvents, in the order of the clauses
%
% An atom is [Predicate, First, Second]. In answers variable number v is -1 - v, numbered by first appearance.

:- dynamic(clause_of/2).

main :-
    prompt(_, ''),
    repeat,
    read(Request),
    (   Request == end_of_file
    ->  !
    ;   answer(Request, Answer),
        print(Answer), nl, flush_output,
        fail
    ).

answer(load(Clauses), [Count]) :-
    retractall(clause_of(_, _)),
    forall(member(c(Head, Body), Clauses), assertz(clause_of(Head, Body))),
    length(Clauses, Count).
answer(step([Selected|Rest], Excluded), Resolvents) :-
    findall(Resolvent, resolvent(Selected, Rest, Excluded, Resolvent), Resolvents),
    maplist(number_variables, Resolvents).

resolvent(Selected, Rest, Excluded, Resolvent) :-
    clause_of(Selected, Body),
    \+ (Body == [], Selected == Excluded),
    append(Body, Rest, Resolvent).

number_variables(Resolvent) :-
    term_variables(Resolvent, Variables),
    number_from(Variables, -1).

number_from([], _).
number_from([Number|Variables], Number) :-
    Next is Number - 1,
    number_from(Variables, Next).
